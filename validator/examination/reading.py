"""Check 2 as a service makes it: strangers' files are decoded in a sandbox, whose word is believed in nothing.

A decoder that crashes, or needs more memory or time than any honest file does, says something about the file: but only
if it does so twice, and only if this machine had that memory to give.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch

from protocol.identifiers import Digest, digest
from protocol.verdicts import ReasonCode
from rollouts.checks import CheckResult
from rollouts.checks.reading import passed, reason_of, refused
from rollouts.errors import BadRolloutFile
from rollouts.flat import most_bytes, unpack
from rollouts.memory import available_memory
from rollouts.samples import RolloutFile
from rollouts.sandbox import Ending, Job, Kind, Limits, Outcome, Sandboxes, SandboxUnavailable
from rollouts.schema import ReadLimits
from validator.examination.interface import NotJudged

_FILE, _REFUSED = b"F", b"R"
_LONGEST_REFUSAL = 4096
_LIBRARIES = 2 << 30
"""Address space that the decoder takes before it reads anything: 0.3 GiB here, and other builds of it may take more. An
honest file must never meet this limit, and a bomb meets it all the same."""
_COPIES = 4
"""How often a file's numbers stand in memory at a time: decoded, as columns, as rows, packed."""
_CPU = timedelta(seconds=2)
_CPU_PER_BYTE = timedelta(seconds=1) / (1 << 24)
"""Decoding honest files takes a fiftieth of it."""
_WALL = 10
_ATTEMPTS = 2
_SAID_OUT_OF_MEMORY = 77


@dataclass(frozen=True, slots=True)
class _Broken:
    """How a decoder ended that gave no answer, in words; and whether a second one has to end likewise."""

    reason: ReasonCode
    what: str


class LimitedReader:
    """Reads files of rollouts in a sandbox.

    Args:
        sandboxes: Where.
        most: What this machine takes, whatever a lease allows.
    """

    def __init__(self, sandboxes: Sandboxes, *, most: ReadLimits) -> None:
        self._sandboxes = sandboxes
        self._most = most

    def read(
        self, path: Path, *, sha256: Digest, lease: ReadLimits
    ) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        """Reads a file.

        Args:
            path: Where it is.
            sha256: What was submitted. Nobody is accused of other bytes, however they came to stand here.
            lease: The most that an honest file of this slot can be. Beyond it a file is forged; within it, but beyond
                what this machine takes, it is not judged here.

        Returns:
            The file, with the check that it passed; the check alone, if it failed; or why nothing can be said.
        """
        try:
            size = path.stat().st_size
            if size > self._most.file_bytes:
                return _too_large_here(f"the file has {size} bytes, and {self._most.file_bytes} are read here")
            content = path.read_bytes()
        except OSError as error:
            return NotJudged(code="disk-trouble", why=f"the file can't be read here: {error}", retryable=True)
        except MemoryError:
            return _no_memory(f"the file has {path.stat().st_size} bytes")
        if digest(hashlib.sha256(content).digest()) != sha256:
            why = f"the file here has {len(content)} bytes, and not the hash {sha256} with which it was fetched"
            return NotJudged(code="file-changed", why=why, retryable=True, hint="is the disk broken, or full?")
        if size > lease.file_bytes:
            return refused(ReasonCode.FORMAT_TOO_LARGE, f"{size} bytes, more than {lease.file_bytes}", size=size)
        return self._decode(content, lease)

    def _decode(self, content: bytes, lease: ReadLimits) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        limits = ReadLimits(**{name: min(value, getattr(self._most, name)) for name, value in asdict(lease).items()})
        wanted = _LIBRARIES + len(content) + _COPIES * limits.decoded_bytes
        memory = min(wanted, max(_LIBRARIES, available_memory(torch.device("cpu"))))
        job = self._job(content, limits, memory)
        broken: list[_Broken] = []
        for _ in range(_ATTEMPTS):
            try:
                outcome = self._sandboxes.run(Kind.FILES, job)
            except SandboxUnavailable as error:
                return NotJudged(code="no-sandbox", why=error.detail, retryable=True, hint=error.hint)
            ended = _ended(outcome, job.limits)
            if not isinstance(ended, _Broken):
                return ended if isinstance(ended, NotJudged) else self._answer(outcome.answer, content, limits, lease)
            if outcome.ending is Ending.OUT_OF_MEMORY and memory < wanted:
                return _no_memory(f"reading it takes more than {memory >> 20} MiB")
            broken.append(ended)
        if broken[0] != broken[1]:
            why = f"one decoder {broken[0].what}, and another one {broken[1].what}"
            return NotJudged(code="decoders-disagree", why=why, retryable=True)
        if limits != lease and broken[0].reason is ReasonCode.FORMAT_TOO_LARGE:
            return _too_large_here(f"the decoder {broken[0].what} within what this machine takes")
        return refused(broken[0].reason, f"two decoders were tried, and each {broken[0].what}", size=len(content))

    def _answer(
        self, answer: bytes, content: bytes, limits: ReadLimits, lease: ReadLimits
    ) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        size = len(content)
        try:
            if answer[:1] == _FILE:
                file = unpack(answer[1:], limits=limits)
                return file, passed(file, size=size)
            code, detail = _refusal(answer)
        except BadRolloutFile as error:
            code, detail = error.code, error.detail
        reason = reason_of(code)
        if reason is ReasonCode.FORMAT_TOO_LARGE and limits != lease:
            return _too_large_here(detail)
        return refused(reason, detail, size=size)

    @staticmethod
    def _job(content: bytes, limits: ReadLimits, memory: int) -> Job:
        cpu = _CPU + _CPU_PER_BYTE * (limits.decoded_bytes + len(content))
        return Job(
            module="inside.parquet",
            payload={"limits": asdict(limits)},
            standard_input=content,
            keep_output=False,
            limits=Limits(
                cpu=cpu,
                wall=_WALL * cpu,
                memory_bytes=memory,
                output_bytes=1 + most_bytes(limits),
            ),
        )


def _ended(outcome: Outcome, limits: Limits) -> _Broken | NotJudged | None:
    """What the decoder's end says; None if it gave an answer."""
    if outcome.succeeded:
        return None
    if outcome.ending is Ending.OUT_OF_TIME and outcome.cpu < limits.cpu:
        return NotJudged(
            code="took-too-long",
            why=f"a decoder had {outcome.cpu.total_seconds():.1f} s of processor time in all its time",
            retryable=True,
            hint="this machine does more than it can",
        )
    if outcome.ending is Ending.EXITED and outcome.exit_code != _SAID_OUT_OF_MEMORY:
        return NotJudged(
            code="decoder-failed",
            why=f"a decoder ended with {outcome.exit_code}, which is a fault of ours",
            retryable=False,
            hint="look at the file with `muster rollouts show`, and report it",
        )
    if outcome.ending is Ending.OUT_OF_MEMORY and outcome.exit_code != _SAID_OUT_OF_MEMORY:
        return _no_memory("the system ended the decoder")
    beyond = {
        Ending.OUT_OF_TIME: f"took more than {limits.cpu_seconds} s",
        Ending.OUT_OF_MEMORY: f"needed more than {limits.memory_bytes >> 20} MiB",
        Ending.TOO_MUCH_OUTPUT: f"gave more than {limits.output_bytes} bytes",
    }
    if outcome.ending in beyond:
        return _Broken(ReasonCode.FORMAT_TOO_LARGE, beyond[outcome.ending])
    return _Broken(ReasonCode.FORMAT_UNREADABLE, "crashed")


def _refusal(answer: bytes) -> tuple[str, str]:
    """Code and detail of a decoder's refusal.

    Raises:
        BadRolloutFile: It is no such thing.
    """
    try:
        said = json.loads(answer[1:]) if answer[:1] == _REFUSED and len(answer) <= _LONGEST_REFUSAL else {}
        code, detail = str(said["code"]), str(said["detail"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRolloutFile("its decoder gave no answer", code="not-parquet") from error
    return code, "".join(each if each.isprintable() else "?" for each in detail)


def _no_memory(what: str) -> NotJudged:
    return NotJudged(
        code="out-of-memory",
        why=f"{what}, and this machine does not have that memory now",
        retryable=True,
        hint="give the validator more memory, or fewer examiners",
    )


def _too_large_here(what: str) -> NotJudged:
    return NotJudged(
        code="too-large-here",
        why=what,
        retryable=False,
        hint="raise the validator's reading limits, then retry the work",
    )
