"""Binary format in which the sandboxed decoder returns a rollout file; the caller validates every field.

    length of the head (4 bytes) · JSON head · JSON of the list of served requests · columns of single values ·
    all tokens and log-probabilities · for each turn: number of drawn and of given tokens · given tokens · proofs

All numbers are little-endian. Columns are in the order of `_SINGLE`, lists in the order of `_LISTS`. `unpack` detects
surplus and missing bytes, because every length follows from earlier fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import MusterError
from protocol.identifiers import address, digest
from rollouts.engines.interface import FinishReason
from rollouts.errors import BadRolloutFile
from rollouts.files.limits import ReadLimits
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.files.served_metadata import MOST_SERVED_BYTES, decode_served, encode_served
from rollouts.precision import Arithmetic
from rollouts.turns import Turn, turns_fault

_SINGLE = {
    "group": "<u4",
    "sample": "<u4",
    "prompt_index": "<u8",
    "finish": "u1",
    "task_reward": "<f8",
    "length_penalty": "<f8",
    "reward": "<f8",
    "target_length": "<i8",
    "prompts": "<u4",
    "outputs": "<u4",
    "proofs": "<u4",
    "turns": "<u4",
}
_LISTS = {"prompt_tokens": ("prompts", "<i4"), "output_tokens": ("outputs", "<i4"), "logprobs": ("outputs", "<f4")}
_FINISHES = tuple(FinishReason)
_NO_TARGET = -(1 << 40)
_LARGEST_HEAD = 16 * 1024
_TEXT = re.compile(r"[ -~]{0,200}")
"""Allowed form of names and versions: one line of printable characters, because they are shown to people."""

_Column = NDArray[Any]


def most_bytes(limits: ReadLimits) -> int:
    """Returns the maximum packed size of a file within these limits."""
    single = sum(np.dtype(kind).itemsize for kind in _SINGLE.values())
    return 4 + _LARGEST_HEAD + MOST_SERVED_BYTES + limits.rows * single + limits.decoded_bytes


def pack(file: RolloutFile) -> bytes:
    """Returns a file in the packed format.

    Raises:
        BadRolloutFile: A value in the file's header is not a line of printable characters.
    """
    header = {name: str(getattr(file.header, name)) for name in SlotHeader.__slots__}
    for name, value in header.items():
        if not _TEXT.fullmatch(value):
            raise BadRolloutFile(f"{name} is not a line of at most 200 printable characters", code="bad-value")
    served = b"" if file.served is None else encode_served(file.served)
    head = json.dumps({"rows": len(file.samples), "header": header, "served": len(served)}).encode()
    columns = [np.array([_single(name, one) for one in file.samples], kind) for name, kind in _SINGLE.items()]
    lists = [
        np.concatenate([getattr(one, name) for one in file.samples]).astype(kind) for name, (_, kind) in _LISTS.items()
    ]
    turns = [turn for one in file.samples for turn in one.turns]
    lengths = [
        np.array(counts, "<u4") for counts in ([turn.drawn for turn in turns], [len(turn.given) for turn in turns])
    ]
    given = np.concatenate([np.zeros(0, np.int32), *(turn.given for turn in turns)]).astype("<i4")
    numbers = [column.tobytes() for column in (*columns, *lists, *lengths, given)]
    return b"".join([len(head).to_bytes(4, "little"), head, served, *numbers, *(one.proofs for one in file.samples)])


_COUNTED = {"prompts": "prompt_tokens", "outputs": "output_tokens", "proofs": "proofs", "turns": "turns"}
"""Columns that have the lengths of lists."""


def _single(name: str, sample: Sample) -> int | float:
    if name == "finish":
        return _FINISHES.index(sample.finish)
    if name == "target_length":
        return _NO_TARGET if sample.target_length is None else sample.target_length
    value: int | float = len(getattr(sample, _COUNTED[name])) if name in _COUNTED else getattr(sample, name)
    return value


def unpack(content: bytes, *, limits: ReadLimits) -> RolloutFile:
    """Parses the output of `pack`, or any untrusted bytes.

    Raises:
        BadRolloutFile: The bytes violate the format or the limits.
    """
    reading = _Reading(content)
    header, rows, served_bytes = _head(reading.take(int.from_bytes(reading.take(4), "little", signed=False)), limits)
    served = decode_served(reading.take(served_bytes)) if served_bytes else None
    single = {name: reading.column(kind, rows) for name, kind in _SINGLE.items()}
    for name in ("prompts", "outputs"):
        if int(single[name].max()) > limits.tokens:
            raise BadRolloutFile(f"more than {limits.tokens} tokens in a row", code="too-long")
    lists = {name: _cut(reading, kind, single[lengths]) for name, (lengths, kind) in _LISTS.items()}
    turns = _turns(reading, single["turns"], limits)
    proofs = _cut(reading, "u1", single["proofs"])
    if reading.left:
        raise BadRolloutFile(f"the data has {reading.left} bytes too many", code="bad-value")
    numbers = [single[name] for name in ("task_reward", "length_penalty", "reward")]
    if not all(np.isfinite(one).all() for one in (*numbers, *lists["logprobs"])):
        raise BadRolloutFile("a number is not finite", code="not-finite")
    if int(single["finish"].max()) >= len(_FINISHES):
        raise BadRolloutFile("a row has an unknown finish reason", code="bad-value")
    values = {name: column.tolist() for name, column in single.items()}
    samples = tuple(_sample(row, values, lists, proofs, turns) for row in range(rows))
    for sample in samples:
        if fault := turns_fault(sample.turns, drawn=len(sample.output_tokens)):
            raise BadRolloutFile(f"sample {sample.sample}: {fault}", code="bad-value")
    if len({bool(sample.turns) for sample in samples}) > 1:
        raise BadRolloutFile("some samples are dialogues, and others are single answers", code="bad-value")
    return RolloutFile(header, samples, served)


def _turns(reading: _Reading, counts: _Column, limits: ReadLimits) -> list[tuple[Turn, ...]]:
    """Returns the turns of each row."""
    if int(counts.max()) > limits.tokens:
        raise BadRolloutFile(f"more than {limits.tokens} turns in a row", code="too-long")
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).tolist()
    drawn, lengths = (reading.column("<u4", ends[-1]) for _ in range(2))
    if len(drawn) and max(int(drawn.max()), int(lengths.max())) > limits.tokens:
        raise BadRolloutFile(f"more than {limits.tokens} tokens in a turn", code="too-long")
    given = _cut(reading, "<i4", lengths)
    turns = [Turn(*pair) for pair in zip(drawn.tolist(), given, strict=True)]
    return [tuple(turns[start:end]) for start, end in pairwise(ends)]


def _sample(
    row: int,
    values: Mapping[str, list[Any]],
    lists: Mapping[str, list[_Column]],
    proofs: list[_Column],
    turns: list[tuple[Turn, ...]],
) -> Sample:
    target = values["target_length"][row]
    return Sample(
        group=values["group"][row],
        sample=values["sample"][row],
        prompt_index=values["prompt_index"][row],
        prompt_tokens=lists["prompt_tokens"][row],
        output_tokens=lists["output_tokens"][row],
        logprobs=lists["logprobs"][row],
        finish=_FINISHES[values["finish"][row]],
        task_reward=values["task_reward"][row],
        length_penalty=values["length_penalty"][row],
        reward=values["reward"][row],
        target_length=None if target == _NO_TARGET else target,
        proofs=proofs[row].tobytes(),
        turns=turns[row],
    )


def _head(content: bytes, limits: ReadLimits) -> tuple[SlotHeader, int, int]:
    """Returns the header, the number of rows, and the size of the list of served requests."""
    try:
        head = json.loads(content)
        rows, served = head["rows"], head["served"]
        texts = {name: _line(head["header"][name]) for name in SlotHeader.__slots__}
        header = SlotHeader(
            run=digest(texts["run"]),
            step=_natural(texts["step"], 64),
            index=_natural(texts["index"], 32),
            node=address(texts["node"]),
            checkpoint=digest(texts["checkpoint"]),
            environment=texts["environment"],
            environment_version=texts["environment_version"],
            arithmetic=Arithmetic.parse(texts["arithmetic"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError, MusterError) as error:
        raise BadRolloutFile("the file's header is malformed", code="bad-value") from error
    if not isinstance(rows, int) or not 0 < rows <= limits.rows:
        raise BadRolloutFile(f"{rows!r:.40} rows; 1 to {limits.rows} are allowed", code="too-many-rows")
    if not isinstance(served, int) or not 0 <= served <= MOST_SERVED_BYTES:
        raise BadRolloutFile(f"{served!r:.40} bytes of served requests", code="bad-value")
    return header, rows, served


def _line(text: object) -> str:
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise TypeError("no line")
    return text


def _natural(text: str, bits: int) -> int:
    value = int(text)
    if not 0 <= value < 1 << bits:
        raise ValueError("a number out of its range")
    return value


def _cut(reading: _Reading, kind: str, lengths: _Column) -> list[_Column]:
    """Returns a column of lists, one per row."""
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    flat = reading.column(kind, int(ends[-1]))
    return [flat[start:end] for start, end in pairwise(ends.tolist())]


class _Reading:
    """Sequential reader of bytes."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise BadRolloutFile("the data end too early", code="bad-value")
        start, self._at = self._at, self._at + count
        return self._content[start : self._at]

    def column(self, kind: str, count: int) -> _Column:
        dtype = np.dtype(kind)
        if count * dtype.itemsize > self.left:
            raise BadRolloutFile("the data end too early", code="bad-value")
        column = np.frombuffer(self._content, dtype, count, self._at)
        self._at += count * dtype.itemsize
        return column.astype(dtype.newbyteorder("="), copy=False)
