"""Strangers' files of rollouts, decoded in a sandbox whose word is believed in nothing: `rollouts.files.packed_format`.

Whoever holds a key, or a model, decodes here: a fault of the Parquet library is then one of a process that has neither.
A decoder that crashes, or needs more memory or time than any honest file does, says something about the file: but only
if it does so twice, and only if this machine had that memory to give.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch

from rollouts.errors import BadRolloutFile, NotDecoded, TooLargeHere
from rollouts.files.packed_format import most_bytes, unpack
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import ReadLimits
from rollouts.models.memory import available_memory
from rollouts.sandbox import Job, JobEnding, JobKind, JobLimits, JobOutcome, Sandboxes, SandboxUnavailable

CRASHED, BEYOND_LIMITS = "decoder-crashed", "beyond-limits"
"""Codes of `BadRolloutFile`, beside those of `rollouts.files.schema`: what became of two decoders."""

LIMIT_OF = {"file-too-large": "decoded_bytes", "too-many-rows": "rows", "too-long": "tokens"}
"""The field of `ReadLimits` that a file has passed, by the code of `TooLargeHere`."""

_FILE, _REFUSED, _TOO_LARGE = b"F", b"R", b"L"
_LONGEST_REFUSAL = 4096
_LIBRARIES = 2 << 30
"""Address space that the decoder takes before it reads anything: 0.3 GiB here, and other builds of it may take more. An
honest file must never meet this limit, and a bomb meets it all the same."""
_COPIES = 4
"""How often a file's numbers stand in memory at a time: decoded, as columns, as rows, packed."""
_CPU = timedelta(seconds=2)
_CPU_PER_MIB = timedelta(milliseconds=60)
_CPU_PER_ROW = timedelta(microseconds=200)
"""Decoding honest files takes less than a seventh of it."""
_WALL = 10
_ATTEMPTS = 2
_SAID_OUT_OF_MEMORY = 77


@dataclass(frozen=True, slots=True)
class _Broken:
    """How a decoder ended that gave no answer: the code of a refusal, and words."""

    code: str
    what: str


class Decoder:
    """Decodes files, for any number of threads.

    Args:
        sandboxes: Where.
    """

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def warm_up(self) -> None:
        """Starts a decoder, which stays for files to come.

        Raises:
            SandboxUnavailable: Nothing untrusted can be decoded here.
        """
        with self._sandboxes.borrow(JobKind.FILES):
            pass

    def decode(self, content: bytes, *, limits: ReadLimits, here: ReadLimits | None = None) -> RolloutFile:
        """Decodes a file.

        Args:
            content: What a stranger wrote.
            limits: What a file may be.
            here: What this machine reads, if that is less.

        Raises:
            BadRolloutFile: It is no file of rollouts within `limits`; or two decoders ended on it, likewise.
            TooLargeHere: It is beyond `here`, and within `limits` as far as it was read.
            NotDecoded: Nothing can be said about it: no sandbox, no memory, no time, or decoders that disagree.
        """
        least = limits if here is None else limits.within(here)
        wanted = _LIBRARIES + len(content) + _COPIES * least.decoded_bytes
        memory = min(wanted, max(_LIBRARIES, available_memory(torch.device("cpu"))))
        job = _job(content, limits, least, memory)
        broken: list[_Broken] = []
        for _ in range(_ATTEMPTS):
            try:
                outcome = self._sandboxes.run(JobKind.FILES, job)
            except SandboxUnavailable as error:
                raise NotDecoded(error.detail, code="no-sandbox", hint=error.hint) from error
            ended = _ended(outcome, job.limits)
            if ended is None:
                return _file(outcome.answer, limits, least)
            if outcome.ending is JobEnding.OUT_OF_MEMORY and memory < wanted:
                raise no_memory(f"reading it takes more than {memory >> 20} MiB")
            broken.append(ended)
        if broken[0] != broken[1]:
            why = f"one decoder {broken[0].what}, and another one {broken[1].what}"
            raise NotDecoded(why, code="decoders-disagree")
        raise BadRolloutFile(f"two decoders were tried, and each {broken[0].what}", code=broken[0].code)


def no_memory(what: str) -> NotDecoded:
    """This machine had too little memory for a file."""
    return NotDecoded(
        f"{what}, and this machine does not have that memory now",
        code="out-of-memory",
        hint="give this process more memory, or let fewer work at a time",
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


def _ended(outcome: JobOutcome, limits: JobLimits) -> _Broken | None:
    """What the decoder's end says; None if it gave an answer.

    Raises:
        NotDecoded: It says nothing about the file.
    """
    if outcome.succeeded:
        return None
    if outcome.ending is JobEnding.OUT_OF_TIME and outcome.waited:
        raise NotDecoded(
            f"a decoder had {outcome.cpu.total_seconds():.1f} s of processor time in all its time",
            code="took-too-long",
            hint="this machine does more than it can",
        )
    if outcome.ending is JobEnding.EXITED and outcome.exit_code != _SAID_OUT_OF_MEMORY:
        raise NotDecoded(
            f"a decoder ended with {outcome.exit_code}, which is a fault of ours",
            code="decoder-failed",
            retryable=False,
            hint="look at the file with `muster rollouts show`, and report it",
        )
    if outcome.ending is JobEnding.OUT_OF_MEMORY and outcome.exit_code != _SAID_OUT_OF_MEMORY:
        raise no_memory("the system ended the decoder")
    beyond = {
        JobEnding.OUT_OF_TIME: f"took more than {limits.cpu_seconds} s",
        JobEnding.OUT_OF_MEMORY: f"needed more than {limits.memory_bytes >> 20} MiB",
        JobEnding.TOO_MUCH_OUTPUT: f"gave more than {limits.output_bytes} bytes",
    }
    if outcome.ending in beyond:
        return _Broken(BEYOND_LIMITS, beyond[outcome.ending])
    return _Broken(CRASHED, "crashed")


def _file(answer: bytes, limits: ReadLimits, least: ReadLimits) -> RolloutFile:
    """The file that a decoder answered.

    Raises:
        BadRolloutFile: It refused it, or its answer is none.
        TooLargeHere: It refused it for a limit of this machine.
    """
    if answer[:1] == _FILE:
        return unpack(answer[1:], limits=least)
    try:
        is_json = answer[:1] in {_REFUSED, _TOO_LARGE} and len(answer) <= _LONGEST_REFUSAL
        said = json.loads(answer[1:]) if is_json else {}
        code, detail = str(said["code"]), str(said["detail"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRolloutFile("its decoder gave no answer", code="not-parquet") from error
    detail = "".join(each if each.isprintable() else "?" for each in detail)
    if answer[:1] == _REFUSED:
        raise BadRolloutFile(detail, code=code)
    limit = LIMIT_OF.get(code)
    if limit is None or getattr(least, limit) == getattr(limits, limit):
        raise BadRolloutFile("its decoder names a limit that this machine does not have", code="not-parquet")
    raise TooLargeHere(detail, code=code)
