"""Messages between a vLLM process and the process that started it.

A message is the length of its head (4 bytes), the length of its body (8 bytes), a JSON head and a body; lengths are
little-endian. The body of `Compare` is a packed rollout file (`rollouts.files.packed_format`), and the body of
`EvidenceReply` is an archive of arrays. Messages have no pickles. So if a policy's weights compromise the vLLM process,
that process can't run code in the process that started it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from itertools import groupby, repeat
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from protocol.identifiers import Digest
from rollouts.checks import Draws, RowEvidence
from rollouts.engines.interface import SampleRequest
from rollouts.errors import EngineFailed
from rollouts.precision import Arithmetic, Dtype
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import Gaps
from rollouts.toploc import ProofResult
from rollouts.toploc.results import Malformed

LARGEST_HEAD = 16 << 20
"""Maximum bytes of a head. Each request of a served file takes about 150 bytes, for its seed and parameters."""
LARGEST_FILE = 4 << 30
"""Maximum bytes of a packed rollout file."""
_HEAD, _BODY = 4, 8
_MALFORMED = (None, *Malformed)


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex")


class OpenEngine(_Message):
    """Opens the engine; the first message of a process."""

    kind: Literal["open"] = "open"
    dtype: Dtype
    device: str | None
    device_class: str
    batch: int | None = None
    """Maximum answers in progress of an engine that generates; None for an engine that only prefills."""


class LoadVersion(_Message):
    """Loads a version, in place if its shapes equal those of the loaded version."""

    kind: Literal["load"] = "load"
    folder: Path
    digest: Digest


class EqualDraws(_Message):
    """Consecutive rows of equal `Draws`."""

    rows: int
    """Number of the rows."""
    seed: bytes | None
    parameters: dict[str, Any]
    """Fields of `SamplingParameters`."""


class Compare(_Message):
    """Recomputes all rows of the rollout file in the body, in their order."""

    kind: Literal["compare"] = "compare"
    draws: tuple[EqualDraws, ...]

    @classmethod
    def of(cls, draws: Sequence[Draws]) -> Compare:
        """Returns the message for rows with these seeds and parameters."""
        return cls(
            draws=tuple(
                EqualDraws(rows=len([*rows]), seed=own.seed, parameters=asdict(own.parameters))
                for own, rows in groupby(draws)
            )
        )

    def each(self) -> Iterator[Draws]:
        """Yields seed and parameters of each row."""
        for one in self.draws:
            yield from repeat(Draws(seed=one.seed, parameters=SamplingParameters(**one.parameters)), one.rows)


class Generate(_Message):
    """Generates the answers to the requests in the body (`pack_requests`)."""

    kind: Literal["generate"] = "generate"
    parameters: dict[str, Any]
    """Fields of `SamplingParameters`."""


class Opened(_Message):
    """Reply to `OpenEngine`."""

    kind: Literal["opened"] = "opened"
    arithmetic: Arithmetic
    """The numerics class of the engine."""


class Done(_Message):
    """Reply to `LoadVersion`."""

    kind: Literal["done"] = "done"


class EvidenceReply(_Message):
    """Reply to `Compare`."""

    kind: Literal["evidence"] = "evidence"


class GeneratedReply(_Message):
    """Reply to `Generate`; the body is a packed rollout file with one row per request, in any order."""

    kind: Literal["generated"] = "generated"


class Failed(_Message):
    """Reply to any message that could not be carried out."""

    kind: Literal["failed"] = "failed"
    error: str
    """Name of the exception's class, if it is one of Muster's."""
    code: str
    detail: str
    hint: str


Request = Annotated[OpenEngine | LoadVersion | Compare | Generate, Field(discriminator="kind")]
Reply = Annotated[Opened | Done | EvidenceReply | GeneratedReply | Failed, Field(discriminator="kind")]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)


def encode(head: BaseModel, body: bytes = b"") -> bytes:
    """Returns the bytes of a message."""
    text = head.model_dump_json().encode()
    return len(text).to_bytes(_HEAD, "little") + len(body).to_bytes(_BODY, "little") + text + body


def lengths(prefix: bytes, *, most: int) -> tuple[int, int]:
    """Returns the lengths of head and body from a message's first `PREFIX` bytes.

    Args:
        prefix: The bytes.
        most: Maximum length of the body.

    Raises:
        EngineFailed: A length exceeds its limit.
    """
    head, body = int.from_bytes(prefix[:_HEAD], "little"), int.from_bytes(prefix[_HEAD:], "little")
    if head > LARGEST_HEAD or body > most:
        raise EngineFailed(f"a message has {head} bytes of head and {body} bytes of body, more than allowed")
    return head, body


PREFIX = _HEAD + _BODY
"""Bytes of the two lengths at the start of a message."""


def read_message(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """Reads head and body of a message from a blocking stream; None at the end of the stream."""
    prefix = stream.read(PREFIX)
    if len(prefix) < PREFIX:
        return None
    head, body = lengths(prefix, most=LARGEST_FILE)
    return stream.read(head), stream.read(body)


def pack_requests(requests: Sequence[SampleRequest]) -> bytes:
    """Returns requests for answers as JSON."""
    return json.dumps([(one.sample, one.seed.hex(), one.prompt_tokens) for one in requests]).encode()


def unpack_requests(content: bytes) -> list[SampleRequest]:
    """Parses the output of `pack_requests`, which comes from the process that started this one."""
    return [
        SampleRequest(sample=sample, prompt_tokens=tuple(prompt), seed=bytes.fromhex(seed))
        for sample, seed, prompt in json.loads(content)
    ]


def pack_evidence(evidence: Sequence[RowEvidence]) -> bytes:
    """Returns the evidence of consecutive rows as an archive of arrays."""
    every = [one.gaps for one in evidence if one.gaps is not None]
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "tokens": np.array([len(one.logprobs) for one in evidence], np.int64),
        "intervals": np.array([len(one.proofs) for one in evidence], np.int64),
        "proofs": np.array([_numbers(proof) for one in evidence for proof in one.proofs], np.float64).reshape(
            -1, len(fields(ProofResult))
        ),
    }
    for name in ("logprobs", "excess", "variance"):
        arrays[name] = _joined([getattr(one, name) for one in evidence])
    for name in ("gaps", "outside", "mismatches"):
        arrays[name] = _joined([getattr(one, name) for one in every])
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **arrays)
    return archive.getvalue()


def largest_evidence(tokens: Sequence[int]) -> int:
    """Returns the maximum bytes of the evidence of rows with these numbers of tokens.

    A token takes 24 bytes, and an interval of 32 tokens takes 56 bytes; a row may have one more result, for surplus
    proofs.
    """
    return (1 << 14) + 64 * sum(tokens) + 256 * len(tokens)


def unpack_evidence(content: bytes, *, tokens: Sequence[int]) -> list[RowEvidence]:
    """Parses the output of `pack_evidence`.

    Args:
        content: The archive.
        tokens: Number of tokens of each row.

    Raises:
        EngineFailed: The archive does not describe these rows.
    """
    try:
        _check_stored(content)
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return _rows({name: archive[name] for name in archive.files}, tokens)
    except Exception as error:  # numpy raises many kinds of errors for bytes that are no archive
        raise EngineFailed(f"the vLLM process sent no valid evidence: {error}") from error


def _check_stored(content: bytes) -> None:
    """Raises ValueError for compressed arrays, whose size in memory the size of the archive does not bound."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
            raise ValueError("it has a compressed array")


def _rows(arrays: Mapping[str, np.ndarray[Any, Any]], tokens: Sequence[int]) -> list[RowEvidence]:
    if arrays["tokens"].tolist() != list(tokens):
        raise ValueError("it has other rows")
    replayed = len(arrays["gaps"]) == sum(tokens)
    ends, proof_ends = np.cumsum(tokens), np.cumsum(arrays["intervals"])
    evidence = []
    for row, count in enumerate(tokens):
        here = slice(int(ends[row]) - count, int(ends[row]))
        proofs = arrays["proofs"][int(proof_ends[row] - arrays["intervals"][row]) : int(proof_ends[row])]
        logprobs = arrays["logprobs"][here].astype(np.float32)
        excess, variance = arrays["excess"][here].astype(np.float32), arrays["variance"][here].astype(np.float32)
        if not len(logprobs) == len(excess) == len(variance) == count:
            raise ValueError("its arrays have other lengths")
        gaps = None
        if replayed:
            gaps = Gaps(
                gaps=arrays["gaps"][here].astype(np.float32),
                outside=arrays["outside"][here].astype(np.float32),
                mismatches=arrays["mismatches"][here].astype(np.bool_),
                logprobs=logprobs,
                excess=excess,
                variance=variance,
            )
        evidence.append(
            RowEvidence(
                proofs=tuple(_proof(one) for one in proofs.tolist()),
                logprobs=logprobs,
                gaps=gaps,
                excess=excess,
                variance=variance,
            )
        )
    return evidence


def _joined(parts: Sequence[np.ndarray[Any, Any] | None]) -> np.ndarray[Any, Any]:
    return np.concatenate([part for part in parts if part is not None] or [np.zeros(0, np.float32)])


def _numbers(proof: ProofResult) -> list[float]:
    malformed, *numbers = astuple(proof)
    return [float(_MALFORMED.index(malformed)), *map(float, numbers)]


def _proof(numbers: Sequence[float]) -> ProofResult:
    malformed, points, exponents, signs, mantissas, median, distance = numbers
    return ProofResult(
        malformed=_MALFORMED[int(malformed)],
        points=int(points),
        exponent_mismatches=int(exponents),
        sign_mismatches=int(signs),
        mantissa_total=int(mantissas),
        mantissa_median=median,
        distance_total=int(distance),
    )
