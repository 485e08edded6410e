"""Decodes untrusted rollout files in a sandbox and validates every field of the result.

Processes that hold a key or a model decode files through this module, so that an exploited bug of the Parquet library
compromises neither the key nor the model. If a decoder crashes, or uses more memory or time than any honest file needs,
the file counts as invalid only if this happens twice and this machine had the memory available.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta

from protocol.runtime.budgets import free_memory
from rollouts.errors import BadRolloutFile, NotDecoded, TooLargeHere
from rollouts.files.limits import ReadLimits
from rollouts.files.packed_format import most_bytes, unpack
from rollouts.files.samples import RolloutFile
from rollouts.sandbox import Job, JobEnding, JobKind, JobLimits, JobOutcome, Sandboxes, SandboxUnavailable

CRASHED, BEYOND_LIMITS = "decoder-crashed", "beyond-limits"
"""Further codes of `BadRolloutFile`, for files on which two decoders failed."""

LIMIT_OF = {"file-too-large": "decoded_bytes", "too-many-rows": "rows", "too-long": "tokens"}
"""The field of `ReadLimits` that a file exceeds, by the code of `TooLargeHere`."""

_FILE, _REFUSED, _TOO_LARGE = b"F", b"R", b"L"
_LONGEST_REFUSAL = 4096
_LIBRARIES = 2 << 30
"""Address space of the decoder before it reads a file. It was measured as 0.3 GiB, but other builds may need more. The
margin keeps honest files below the limit; the limit still stops decompression bombs."""
_COPIES = 4
"""Maximum copies of a file's numbers in memory at once: decoded, as columns, as rows, and packed."""
_CPU = timedelta(seconds=2)
_CPU_PER_MIB = timedelta(milliseconds=60)
_CPU_PER_ROW = timedelta(microseconds=200)
"""CPU limit of a decoder: a constant, plus a time per MiB and per row. Decoding an honest file takes less than a
seventh of this limit."""
_WALL = 10  # wall-clock limit as a multiple of the CPU limit
_ATTEMPTS = 2
_EXIT_OUT_OF_MEMORY = 77


@dataclass(frozen=True, slots=True)
class _DecoderFailure:
    """The refusal code and description of a decoder that ended without an answer."""

    code: str
    what: str


class Decoder:
    """Decodes rollout files in sandboxes; thread-safe.

    Args:
        sandboxes: The sandboxes to run decoders in.
    """

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def warm_up(self) -> None:
        """Starts a decoder and keeps it for later files.

        Raises:
            SandboxUnavailable: This machine has no sandbox for untrusted files.
        """
        with self._sandboxes.borrow(JobKind.FILES):
            pass

    def decode(self, content: bytes, *, limits: ReadLimits, here: ReadLimits | None = None) -> RolloutFile:
        """Decodes a file.

        Args:
            content: The untrusted file.
            limits: Size limits of the file's lease.
            here: Smaller size limits of this machine; None if it has none.

        Raises:
            BadRolloutFile: The file is invalid or exceeds `limits`, or two decoders failed on it in the same way.
            TooLargeHere: The file exceeds `here`. The part that was already read is within `limits`; the rest was not
                checked.
            NotDecoded: The file's validity is unknown, because a sandbox, memory or time was missing, or because two
                decoders failed in different ways.
        """
        least = limits if here is None else limits.within(here)
        wanted = _LIBRARIES + len(content) + _COPIES * least.decoded_bytes
        memory = min(wanted, max(_LIBRARIES, free_memory()))
        job = _job(content, limits, least, memory)
        failures: list[_DecoderFailure] = []
        for _ in range(_ATTEMPTS):
            try:
                outcome = self._sandboxes.run(JobKind.FILES, job)
            except SandboxUnavailable as error:
                raise NotDecoded(error.detail, code="no-sandbox", hint=error.hint) from error
            failure = _failure_of(outcome, job.limits)
            if failure is None:
                return _file(outcome.answer, limits, least)
            if outcome.ending is JobEnding.OUT_OF_MEMORY and memory < wanted:
                raise no_memory(f"reading it takes more than {memory >> 20} MiB")
            failures.append(failure)
        if failures[0] != failures[1]:
            why = f"one decoder {failures[0].what}, but another decoder {failures[1].what}"
            raise NotDecoded(why, code="decoders-disagree")
        raise BadRolloutFile(f"two decoders were tried, and each {failures[0].what}", code=failures[0].code)


def no_memory(what: str) -> NotDecoded:
    """Returns the error for a file that needs more memory than this machine has available."""
    return NotDecoded(
        f"{what}, but this machine does not have that memory now",
        code="out-of-memory",
        hint="give this process more memory, or let it decode fewer files at a time",
    )


def _job(content: bytes, limits: ReadLimits, least: ReadLimits, memory: int) -> Job:
    mebibytes = (least.decoded_bytes + len(content)) / (1 << 20)
    cpu = _CPU + mebibytes * _CPU_PER_MIB + least.rows * _CPU_PER_ROW
    return Job(
        module="inside.parquet",
        payload={"limits": asdict(limits), "here": asdict(least)},
        standard_input=content,
        keep_output=False,
        limits=JobLimits(cpu=cpu, wall=_WALL * cpu, memory_bytes=memory, output_bytes=1 + most_bytes(least)),
    )


def _failure_of(outcome: JobOutcome, limits: JobLimits) -> _DecoderFailure | None:
    """Returns the failure of a decoder on the file; None if the decoder answered.

    Raises:
        NotDecoded: The failure does not depend on the file.
    """
    if outcome.succeeded:
        return None
    if outcome.ending is JobEnding.OUT_OF_TIME and outcome.waited:
        raise NotDecoded(
            f"a decoder reached its wall-clock limit after {outcome.cpu.total_seconds():.1f} s of CPU time",
            code="took-too-long",
            hint="this machine is overloaded; run fewer jobs at a time",
        )
    if outcome.ending is JobEnding.EXITED and outcome.exit_code != _EXIT_OUT_OF_MEMORY:
        raise NotDecoded(
            f"a decoder exited with status {outcome.exit_code}, which is a bug in Muster",
            code="decoder-failed",
            retryable=False,
            hint="inspect the file with `muster rollouts show`, and report the bug",
        )
    if outcome.ending is JobEnding.OUT_OF_MEMORY and outcome.exit_code != _EXIT_OUT_OF_MEMORY:
        raise no_memory("the system ended the decoder")
    beyond = {
        JobEnding.OUT_OF_TIME: f"took more than {limits.cpu_seconds} s",
        JobEnding.OUT_OF_MEMORY: f"needed more than {limits.memory_bytes >> 20} MiB",
        JobEnding.TOO_MUCH_OUTPUT: f"gave more than {limits.output_bytes} bytes",
    }
    if outcome.ending in beyond:
        return _DecoderFailure(BEYOND_LIMITS, beyond[outcome.ending])
    return _DecoderFailure(CRASHED, "crashed")


def _file(answer: bytes, limits: ReadLimits, least: ReadLimits) -> RolloutFile:
    """Returns the file in the decoder's answer.

    Raises:
        BadRolloutFile: The decoder refused the file, or its answer is malformed.
        TooLargeHere: The file exceeds a limit of this machine.
    """
    if answer[:1] == _FILE:
        return unpack(answer[1:], limits=least)
    try:
        is_json = answer[:1] in {_REFUSED, _TOO_LARGE} and len(answer) <= _LONGEST_REFUSAL
        refusal = json.loads(answer[1:]) if is_json else {}
        code, detail = str(refusal["code"]), str(refusal["detail"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRolloutFile("the file's decoder gave no valid answer", code="not-parquet") from error
    detail = "".join(each if each.isprintable() else "?" for each in detail)
    if answer[:1] == _REFUSED:
        raise BadRolloutFile(detail, code=code)
    limit = LIMIT_OF.get(code)
    if limit is None or getattr(least, limit) == getattr(limits, limit):
        raise BadRolloutFile("the file's decoder names a limit that this machine does not have", code="not-parquet")
    raise TooLargeHere(detail, code=code)
