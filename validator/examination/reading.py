"""Check 2 as a service makes it: strangers' files are decoded in a sandbox, and what it hands back is believed in
nothing.

A decoder that crashes, or needs more memory or time than any honest file does, says something about the file: but only
if it does so twice, and only if this machine had that memory to give.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch

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
_LIBRARIES = 1 << 30
"""Address space that the decoder takes before it reads anything; most of it is never touched."""
_COPIES = 4
"""How often a file's numbers stand in memory at a time: decoded, as columns, as rows, packed."""
_CPU = timedelta(seconds=2)
_CPU_PER_BYTE = timedelta(microseconds=1)
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

    def read(self, path: Path, *, lease: ReadLimits) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        """Reads a file.

        Args:
            path: Where it is.
            lease: The most that an honest file of this slot can be. Beyond it a file is forged; within it, but beyond
                what this machine takes, it is not judged here.

        Returns:
            The file, with the check that it passed; the check alone, if it failed; or why nothing can be said.
        """
        try:
            size = path.stat().st_size
            if size > lease.file_bytes:
                return refused(ReasonCode.FORMAT_TOO_LARGE, f"{size} bytes, more than {lease.file_bytes}", size=size)
            if size > self._most.file_bytes:
                return _too_large_here(f"the file has {size} bytes, and {self._most.file_bytes} are read here")
            content = path.read_bytes()
        except OSError as error:
            return NotJudged(code="disk-trouble", why=f"the file can't be read here: {error}", retryable=True)
        except MemoryError:
            return _no_memory(f"the file has {path.stat().st_size} bytes")
        return self._decode(content, lease)

    def _decode(self, content: bytes, lease: ReadLimits) -> tuple[RolloutFile, CheckResult] | CheckResult | NotJudged:
        limits = ReadLimits(**{name: min(value, getattr(self._most, name)) for name, value in asdict(lease).items()})
        job = self._job(content, limits)
        broken: list[_Broken] = []
        for _ in range(_ATTEMPTS):
            if available_memory(torch.device("cpu")) < job.limits.memory_bytes - _LIBRARIES:
                return _no_memory(f"reading it may take {job.limits.memory_bytes >> 20} MiB")
            try:
                outcome = self._sandboxes.run(Kind.FILES, job)
            except SandboxUnavailable as error:
                return NotJudged(code="no-sandbox", why=error.detail, retryable=True, hint=error.hint)
            ended = _ended(outcome, job.limits)
            if not isinstance(ended, _Broken):
                return ended if isinstance(ended, NotJudged) else self._answer(outcome.answer, content, limits, lease)
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
    def _job(content: bytes, limits: ReadLimits) -> Job:
        decoded = limits.decoded_bytes
        return Job(
            module="inside.parquet",
            payload={"limits": asdict(limits)},
            standard_input=content,
            keep_output=False,
            limits=Limits(
                cpu=_CPU + _CPU_PER_BYTE * (decoded + len(content)),
                wall=_WALL * (_CPU + _CPU_PER_BYTE * (decoded + len(content))),
                memory_bytes=_LIBRARIES + len(content) + _COPIES * decoded,
                output_bytes=1 + most_bytes(limits),
            ),
        )


def _ended(outcome: Outcome, limits: Limits) -> _Broken | NotJudged | None:
    """What the decoder's end says; None if it gave an answer."""
    match outcome.ending:
        case Ending.EXITED if outcome.exit_code == 0:
            return None
        case Ending.OUT_OF_TIME if outcome.cpu < limits.cpu:
            return NotJudged(
                code="took-too-long",
                why=f"a decoder had {outcome.cpu.total_seconds():.1f} s of processor time in all its time",
                retryable=True,
                hint="this machine does more than it can",
            )
        case Ending.OUT_OF_TIME:
            return _Broken(ReasonCode.FORMAT_TOO_LARGE, f"took more than {limits.cpu_seconds} s")
        case Ending.OUT_OF_MEMORY if outcome.exit_code != _SAID_OUT_OF_MEMORY:
            return _no_memory("the system ended the decoder")
        case Ending.OUT_OF_MEMORY:
            return _Broken(ReasonCode.FORMAT_TOO_LARGE, f"needed more than {limits.memory_bytes >> 20} MiB")
        case Ending.TOO_MUCH_OUTPUT:
            return _Broken(ReasonCode.FORMAT_TOO_LARGE, f"gave more than {limits.output_bytes} bytes")
    return _Broken(ReasonCode.FORMAT_UNREADABLE, "crashed")


def _refusal(answer: bytes) -> tuple[str, str]:
    try:
        if answer[:1] != _REFUSED or len(answer) > _LONGEST_REFUSAL:
            raise ValueError("no refusal")
        said = json.loads(answer[1:])
        code, detail = said["code"], said["detail"]
        if not isinstance(code, str) or not isinstance(detail, str):
            raise TypeError("no text")
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
