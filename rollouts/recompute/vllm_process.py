"""Starts a vLLM process of one numerics class, and sends requests to it."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, ValidationError

import rollouts.errors
from protocol.errors import InvalidInput, MusterError, NotFound
from protocol.identifiers import Digest
from rollouts.checks import Draws, RowEvidence
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.engines.vllm.cpu_kernels import check_class, environment_for
from rollouts.errors import BadRolloutFile, EngineFailed
from rollouts.files.limits import ReadLimits
from rollouts.files.packed_format import most_bytes, pack, unpack
from rollouts.files.samples import RolloutFile
from rollouts.precision import Arithmetic
from rollouts.recompute.messages import (
    PREFIX,
    REPLY,
    Compare,
    Done,
    EvidenceReply,
    Failed,
    Generate,
    GeneratedReply,
    LoadVersion,
    Opened,
    OpenEngine,
    Reply,
    encode,
    largest_evidence,
    lengths,
    pack_requests,
    unpack_evidence,
)
from rollouts.recompute.place import VllmPlace
from rollouts.sampling.parameters import SamplingParameters

START_WITHIN = timedelta(minutes=3)
"""Timeout of the start of the process; importing torch and vLLM takes about ten seconds on an idle machine."""
LOAD_WITHIN = timedelta(minutes=15)
"""Timeout of loading a version, which starts vLLM."""
COMPARE_WITHIN = timedelta(minutes=30)
"""Timeout of a prefill. The owner of the process may end the process earlier."""
_END_WITHIN = timedelta(seconds=5)
_PROGRAM = "rollouts.recompute.program"
_ROW_BYTES, _TOKEN_BYTES = 1024, 32
"""Upper bounds of the decoded bytes of a row besides its tokens, and of a generated token with its share of a proof."""
_PIECE = 1 << 20
_PIPE = select.PIPE_BUF
"""Bytes that a writable pipe takes without blocking (POSIX guarantees at least 512)."""

_Expected = TypeVar("_Expected", bound=BaseModel)


class VllmProcess:
    """A process that prefills with vLLM in one numerics class; as a context manager, ends the process on exit.

    Args:
        place: The vLLM installation.
        arithmetic: The numerics class.
        batch: Maximum answers in progress of a process that generates; None for a process that only prefills.

    Raises:
        NotFound: vLLM is not installed at this place.
        InvalidInput: This machine can't reproduce the class, or the installed vLLM has another version.
        EngineFailed: The process did not start.
    """

    def __init__(self, place: VllmPlace, arithmetic: Arithmetic, *, batch: int | None = None) -> None:
        if not arithmetic.is_class:
            raise InvalidInput(f"{arithmetic} is not a numerics class")
        variables = place.environment()
        if arithmetic.device.startswith("cpu-"):
            check_class(arithmetic.device)
            variables |= environment_for(arithmetic.device)
        self.arithmetic = arithmetic
        self.version: Digest | None = None
        """The digest of the loaded version; None before the first load and after an error."""
        self._place, self._variables, self._batch = place, variables, batch
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version; in place if the shapes of its weights equal those of the loaded version.

        Raises:
            BadVersionFolder: The folder is unusable.
            OutOfMemory: The weights do not fit into memory.
            EngineFailed: The process ended, or vLLM failed.
        """
        self.version = None
        self._ask(LoadVersion(folder=folder, digest=version), expected=Done, within=LOAD_WITHIN)
        self.version = version

    def compare(self, file: RolloutFile, rows: Mapping[int, Draws]) -> dict[int, RowEvidence]:
        """Recomputes rows of a file with the loaded version; rows share passes in the given order.

        Args:
            file: A file whose tokens fit the model's vocabulary and context.
            rows: Row numbers, each with the row's seed and sampling parameters.

        Raises:
            InvalidInput: A row does not fit the model.
            EngineFailed: The process ended, or vLLM failed.
        """
        if not rows:
            return {}
        samples = tuple(file.samples[row] for row in rows)
        request, content = Compare.of([*rows.values()]), pack(replace(file, samples=samples))
        loaded, self.version = self.version, None  # after an error in a prefill the version must be loaded again
        tokens = [len(sample.output_tokens) for sample in samples]
        _, body = self._ask(
            request, content, expected=EvidenceReply, within=COMPARE_WITHIN, most=largest_evidence(tokens)
        )
        self.version = loaded
        evidence = unpack_evidence(body, tokens=tokens)
        return dict(zip(rows, evidence, strict=True))

    def generate(self, requests: Sequence[SampleRequest], parameters: SamplingParameters) -> dict[int, Completion]:
        """Generates answers with the loaded version; returns them by sample number.

        Raises:
            InvalidInput: A request does not fit the model.
            EngineFailed: The process ended, vLLM failed, or the reply has other answers than requested.
        """
        loaded, self.version = self.version, None
        if loaded is None:
            raise EngineFailed("the vLLM process has no version loaded")
        prompts = sum(len(one.prompt_tokens) for one in requests)
        longest = max((len(one.prompt_tokens) for one in requests), default=0)
        limits = ReadLimits(
            rows=len(requests),
            decoded_bytes=4 * prompts + len(requests) * (_ROW_BYTES + _TOKEN_BYTES * parameters.max_new_tokens),
            tokens=max(longest, parameters.max_new_tokens),
        )
        _, body = self._ask(
            Generate(parameters=asdict(parameters)),
            pack_requests(requests),
            expected=GeneratedReply,
            within=COMPARE_WITHIN,
            most=most_bytes(limits),
        )
        self.version = loaded
        try:
            rows = unpack(body, limits=limits).samples
        except BadRolloutFile as error:
            raise EngineFailed(f"the vLLM process sent no valid answers: {error.detail}") from error
        if sorted(row.sample for row in rows) != sorted(one.sample for one in requests):
            raise EngineFailed("the vLLM process sent answers to other requests")
        return {
            row.sample: Completion(
                sample=row.sample,
                tokens=tuple(row.output_tokens.tolist()),
                logprobs=row.logprobs,
                finish=row.finish,
                proofs=row.proofs,
                version=loaded,
            )
            for row in rows
        }

    def restart(self) -> None:
        """Ends the process and starts another one in its place, without a version.

        Raises:
            EngineFailed: The process did not start.
            MusterError: The vLLM installation has changed.
        """
        self.close()
        self._start()

    def close(self) -> None:
        """Ends the process: closes its input, and kills it if it still runs after five seconds."""
        self.version = None
        process = self._process
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            process.wait(_END_WITHIN.total_seconds())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        command: list[str | Path] = [self._place.interpreter(), "-m", _PROGRAM]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._variables
            )
        except OSError as error:
            raise EngineFailed(f"no vLLM process can be started: {error}") from error
        try:
            self._open(self._place)
        except BaseException:
            self.close()
            raise

    def _open(self, place: VllmPlace) -> None:
        wanted = self.arithmetic
        device = "cpu" if wanted.device.startswith("cpu-") else place.device
        request = OpenEngine(dtype=wanted.dtype, device=device, device_class=wanted.device, batch=self._batch)
        reply, _ = self._ask(request, expected=Opened, within=START_WITHIN)
        if reply.arithmetic != wanted:
            raise InvalidInput(
                f"the installed vLLM computes in {reply.arithmetic}, not {wanted}",
                hint=f"install vLLM {wanted.version} in the environment of {place.interpreter()}",
            )

    def _ask(
        self, request: BaseModel, body: bytes = b"", *, expected: type[_Expected], within: timedelta, most: int = 0
    ) -> tuple[_Expected, bytes]:
        """Sends a request and returns the reply, whose body has at most `most` bytes.

        Any error ends the process. Otherwise the late reply to this request would be read as the reply to the next one.
        """
        deadline = time.monotonic() + within.total_seconds()
        try:
            self._send(encode(request, body), deadline)
            reply, content = self._receive(deadline, most)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError | ValueError | EngineFailed):
                raise
            why = error.detail if isinstance(error, EngineFailed) else str(error)
            raise EngineFailed(f"the vLLM process of {self.arithmetic} ended: {why}") from error
        if isinstance(reply, Failed):
            raise _error(reply)
        if not isinstance(reply, expected):
            self.close()
            raise EngineFailed(f"the vLLM process sent a reply of the wrong kind: {reply.kind}")
        return reply, content

    def _send(self, message: bytes, deadline: float) -> None:
        if self._process.stdin is None:
            raise EngineFailed("it has no input")
        descriptor, left = self._process.stdin.fileno(), memoryview(message)
        while left:
            _, ready, _ = select.select([], [descriptor], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise EngineFailed("it did not read the request in time")
            left = left[os.write(descriptor, left[:_PIPE]) :]

    def _receive(self, deadline: float, most: int) -> tuple[Reply, bytes]:
        head, body = lengths(self._read(PREFIX, deadline), most=most)
        text, content = self._read(head, deadline), self._read(body, deadline)
        try:
            return REPLY.validate_json(text), content
        except ValidationError as error:
            raise EngineFailed("it sent an invalid reply") from error

    def _read(self, count: int, deadline: float) -> bytes:
        if self._process.stdout is None:
            raise EngineFailed("it has no output")
        descriptor, parts = self._process.stdout.fileno(), bytearray()
        while len(parts) < count:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise EngineFailed("it did not reply in time")
            piece = os.read(descriptor, min(_PIECE, count - len(parts)))
            if not piece:
                raise EngineFailed(f"it exited with status {self._process.poll()}; its output is in the log")
            parts += piece
        return bytes(parts)


def _error(reply: Failed) -> Exception:
    """Returns the exception that the process reported, of the same class if Muster has that class."""
    kinds = {**vars(rollouts.errors), "InvalidInput": InvalidInput, "NotFound": NotFound}
    kind = kinds.get(reply.error)
    if not (isinstance(kind, type) and issubclass(kind, MusterError)):
        kind = EngineFailed
    error: Exception = kind(reply.detail, hint=reply.hint, code=reply.code)
    return error
