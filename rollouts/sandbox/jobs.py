"""Jobs of sandboxes: kinds, limits and outcomes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from pydantic import JsonValue

from protocol.errors import InvalidInput

_MIB = 1 << 20
_LEAST_MEMORY = 64 * _MIB


class JobKind(Enum):
    """Kind of a job; a sandbox preloads the kind's modules and never runs jobs of another kind."""

    SOLUTION = "solution"
    """Untrusted programs and functions, with the standard library."""
    CHECKER = "checker"
    """Unit tests of a task, whose solution runs in another sandbox."""
    MATHEMATICS = "mathematics"
    """Symbolic equality, with the math-verify library. Jobs of this kind may read files, because the library imports
    modules lazily; they run no untrusted code."""
    FILES = "files"
    """Decoding of untrusted rollout files by the Parquet library."""
    GYM = "gym"
    """Prompts and scores of reasoning-gym's datasets, with a frozen clock. Jobs of this kind may read files, because
    datasets read word lists, fonts and modules on demand; they receive no answer that Python could run as a program."""

    TOOL = "tool"
    """Programs that a model runs in a dialogue, whose output must be the same on every machine."""
    TOOL_AGAIN = "tool again"
    """Second runs of these programs. The server is another process, so the addresses of its objects are others, and a
    program whose output depends on them has another output."""

    @property
    def may_read_files(self) -> bool:
        """Whether jobs of this kind can read the files that their sandbox shows."""
        return self in {JobKind.MATHEMATICS, JobKind.GYM}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageJobs:
    """Kind of the jobs that an installed package defines, such as an adapter for environments of another library.

    The sandbox runs the package's own code and the environments that it adapts. Clock and random numbers are fixed in
    these sandboxes, and their jobs may read the files that the sandbox shows.

    Args:
        name: Name of the package in messages.
        modules: Modules of jobs, which the first process imports.
        libraries: Packages whose site directory the sandbox shows, with all other packages in it.
        packages: Packages and modules that the sandbox shows without the files beside them; it also shows `rollouts`,
            for `rollouts.adapters.job`.
        hint: How to install a package that is missing.
        start_within: Time-out for starting the first process, which imports the package's libraries.
    """

    name: str
    modules: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    hint: str = ""
    start_within: timedelta = timedelta(minutes=3)

    @property
    def may_read_files(self) -> bool:
        """True: libraries import modules and read data on demand."""
        return True


SandboxKind = JobKind | PackageJobs
"""Kind of a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Resource limits of one job.

    Args:
        cpu: CPU time, rounded up to seconds. This limit should end a job before `wall` does, because CPU time does not
            depend on the machine's load.
        wall: Elapsed time, which bounds jobs that sleep.
        memory_bytes: Address space, including the address space of the interpreter and of inherited objects.
        output_bytes: Maximum of each output stream.
    """

    cpu: timedelta = timedelta(seconds=5)
    wall: timedelta = timedelta(seconds=15)
    memory_bytes: int = 1024 * _MIB
    output_bytes: int = 4 * _MIB

    def __post_init__(self) -> None:
        if self.cpu < timedelta(seconds=1) or self.wall <= timedelta():
            raise InvalidInput(
                f"a job can't have a limit of {self.cpu} of CPU time and {self.wall} of elapsed time",
                hint="give at least one second of CPU time, and more than 0 of elapsed time",
            )
        if self.memory_bytes < _LEAST_MEMORY or self.output_bytes < 1:
            raise InvalidInput(
                f"a job can't have a limit of {self.memory_bytes} bytes of memory and {self.output_bytes} of output",
                hint="give at least 64 MiB of memory and 1 byte of output",
            )

    @property
    def cpu_seconds(self) -> int:
        """CPU limit as the kernel counts it: whole seconds, rounded up."""
        return math.ceil(self.cpu.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Object that a sandbox's server makes once and that jobs inherit by the fork, such as a dataset.

    The server makes the object without the confinement of a job. So the payload must come from a recipe's options,
    never from an answer.

    Args:
        module: Module whose `prepare(payload)` makes the object: of the package `inside`, or one of `PackageJobs`.
        payload: Parameters.
        group: Name of a group of objects that share state, such as an attribute of their class. The server keeps one
            object of a group at a time. None for an object that shares no state.
        within: Time-out.
        memory_bytes: Limit of the server's address space while it makes the object, including the interpreter and the
            other objects. If the limit is too low, a new server makes the object alone. The limit of each job that
            inherits the object must be larger, because a fork's address space includes all inherited memory.
    """

    module: str
    payload: Mapping[str, JsonValue]
    group: str | None = None
    within: timedelta = timedelta(seconds=60)
    memory_bytes: int = 512 * _MIB

    @property
    def key(self) -> str:
        """Digest of module, group and payload."""
        canonical = json.dumps([self.module, self.group, dict(self.payload)], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Args:
        module: Module that runs the job: of the package `inside`, such as `inside.program`, or one of `PackageJobs`.
        payload: Parameters, read by trusted code before anything untrusted runs.
        standard_input: Bytes, or the read end of a pipe, which the caller keeps.
        calls: Read or write end of a pipe that becomes descriptor 4; the caller keeps it.
        answers: Write end of a pipe that becomes descriptor 3; None to collect the output in `JobOutcome.answer`.
        keep_output: Whether the outcome includes printed output; otherwise it is discarded.
        limits: Resource limits.
        needs: Object that the job inherits, as the second argument of its module's `run`.

    Raises:
        InvalidInput: The memory limit of the object leaves the job too little memory.
    """

    module: str
    payload: Mapping[str, JsonValue]
    standard_input: bytes | int = b""
    calls: bytes | int = b""
    answers: int | None = None
    keep_output: bool = True
    limits: JobLimits = field(default_factory=JobLimits)
    needs: Preparation | None = None

    def __post_init__(self) -> None:
        if self.needs is not None and self.limits.memory_bytes < self.needs.memory_bytes + _LEAST_MEMORY:
            raise InvalidInput(
                f"a job may have {self.limits.memory_bytes >> 20} MiB of memory, but the object that it inherits may "
                f"have {self.needs.memory_bytes >> 20} MiB",
                hint=f"give the job at least {_LEAST_MEMORY >> 20} MiB more than the object",
            )


class JobEnding(Enum):
    """Reason why a job ended."""

    EXITED = "exited"
    """The job exited by itself; the exit code shows whether it succeeded."""
    OUT_OF_TIME = "out of time"
    OUT_OF_MEMORY = "out of memory"
    TOO_MUCH_OUTPUT = "too much output"
    KILLED = "killed"
    """A signal ended the job: it crashed, or violated a rule that the kernel enforces by a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """End and output of a job. The untrusted job controls all fields except those about limits."""

    ending: JobEnding
    exit_code: int
    """Exit code from 0 to 255; 0 if the job did not exit by itself."""
    output: bytes
    """Standard output, truncated at the limit."""
    errors: bytes
    """Standard error, truncated at the limit."""
    answer: bytes
    """Output on descriptor 3, truncated at the limit."""
    cpu: timedelta
    """CPU time that the system counted; may be a few tenths of a second below the CPU limit that ended the job."""
    waited: bool = False
    """True if the elapsed-time limit ended the job, regardless of CPU time."""

    @property
    def succeeded(self) -> bool:
        """True if the job exited with code 0."""
        return self.ending is JobEnding.EXITED and self.exit_code == 0

    @property
    def undecided(self) -> bool:
        """True if a limit ended the job, so that another machine may get another result."""
        return self.ending in {JobEnding.OUT_OF_TIME, JobEnding.OUT_OF_MEMORY}
