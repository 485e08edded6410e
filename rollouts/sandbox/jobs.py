"""What is run in a sandbox, within which limits, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from pydantic import JsonValue

from protocol.errors import InvalidInput

_MIB = 1 << 20


class JobKind(Enum):
    """What a sandbox has imported before its first job; jobs of different kinds never share one."""

    SOLUTION = "solution"
    """Strangers' programs and functions, with the standard library."""
    CHECKER = "checker"
    """Unit tests of a task, whose solution runs elsewhere."""
    MATHEMATICS = "mathematics"
    """Symbolic equality, with the math-verify library. Its jobs may read files: the library imports as it goes, and
    they run no code of a stranger's."""
    FILES = "files"
    """Files of rollouts that strangers wrote, decoded by the Parquet library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """What one job may use.

    Args:
        cpu: Processor time, in whole seconds; what honest jobs are measured by, since it is the same on a busy machine.
        wall: Time that passes, for jobs that sleep.
        memory_bytes: Address space, the interpreter's own included.
        output_bytes: Of each of its output streams.
    """

    cpu: timedelta = timedelta(seconds=5)
    wall: timedelta = timedelta(seconds=15)
    memory_bytes: int = 1024 * _MIB
    output_bytes: int = 4 * _MIB

    def __post_init__(self) -> None:
        if self.cpu < timedelta(seconds=1) or self.wall <= timedelta():
            raise InvalidInput(f"a limit of {self.cpu} processor time and {self.wall}", hint="give a second or more")
        if self.memory_bytes < 64 * _MIB or self.output_bytes < 1:
            raise InvalidInput(f"a limit of {self.memory_bytes} bytes of memory", hint="give 64 MiB or more")

    @property
    def cpu_seconds(self) -> int:
        """As the kernel counts: whole seconds, rounded up."""
        return math.ceil(self.cpu.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Args:
        module: What runs it: a module of the package `inside`, such as `inside.program`.
        payload: What it is about; trusted code reads it before anything untrusted runs.
        standard_input: What it finds there, or the read end of a pipe, which stays the caller's.
        calls: The read or write end of a pipe that the job gets as descriptor 4; stays the caller's.
        answers: The write end of a pipe that the job gets as descriptor 3 instead of one that is read into the outcome.
        keep_output: Whether what it prints is read into the outcome; else nobody reads it.
        limits: What it may use.
    """

    module: str
    payload: Mapping[str, JsonValue]
    standard_input: bytes | int = b""
    calls: bytes | int = b""
    answers: int | None = None
    keep_output: bool = True
    limits: JobLimits = field(default_factory=JobLimits)


class JobEnding(Enum):
    """How a job came to its end."""

    EXITED = "exited"
    """By itself; the exit code says more."""
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"
    KILLED = "killed"
    """By a signal: it crashed, or broke a rule that the kernel enforces so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job ended, and what it wrote. Everything here but the ending's limits is the job's own word."""

    ending: JobEnding
    exit_code: int
    """0 to 255; 0 too if it did not exit by itself."""
    output: bytes
    """Standard output, cut at the limit."""
    errors: bytes
    """Standard error, cut at the limit."""
    answer: bytes
    """What it wrote to descriptor 3, cut at the limit."""
    cpu: timedelta
    """As the system counts at the end: up to a few tenths less than the limit where it was the limit that ended it."""
    waited: bool = False
    """Whether it was ended because time passed, whatever the processor was doing meanwhile."""

    @property
    def succeeded(self) -> bool:
        """Whether it exited by itself with code 0."""
        return self.ending is JobEnding.EXITED and self.exit_code == 0

    @property
    def undecided(self) -> bool:
        """Whether a limit ended it, so that another machine might find otherwise."""
        return self.ending in {JobEnding.OUT_OF_TIME, JobEnding.OUT_OF_MEMORY}
