"""A running job: provides its input, reads bounded output, and enforces the time limits."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

from rollouts.sandbox.control import JobReport, SandboxControl
from rollouts.sandbox.deadline import latest_end
from rollouts.sandbox.errors import SandboxUnavailable
from rollouts.sandbox.jobs import Job, JobEnding, JobOutcome

_ANSWER_KILL_WITHIN = 10.0
"""Maximum seconds from a kill request to the server's report; far more than a kill takes on a busy machine."""

_EXIT_OUT_OF_MEMORY = 77
"""`OUT_OF_MEMORY` of inside/program.py."""

_READ_BYTES = 64 * 1024
_ALL_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class RunningJob:
    """A started job; made by `Sandbox.start`."""

    def __init__(self, control: SandboxControl, number: int, job: Job) -> None:
        self._control = control
        self._number = number
        self._limits = job.limits
        self._deadline = min(time.monotonic() + job.limits.wall.total_seconds(), latest_end())
        self._cut_short: JobEnding | None = None
        self._streams: dict[str, _Stream] = {}
        order = {
            "job": number,
            "module": job.module,
            "cpu_seconds": job.limits.cpu_seconds,
            "memory_bytes": job.limits.memory_bytes,
            "needs": job.needs.key if job.needs is not None else None,
        }
        try:
            with contextlib.ExitStack() as theirs:
                control.send(order, list(self._descriptors(job, theirs)))
        except BaseException:
            self._close()
            raise

    def finish(self) -> JobOutcome:
        """Reads the job's output until it has ended or exceeds a limit.

        Raises:
            SandboxUnavailable: The sandbox itself broke; the job has no outcome.
        """
        try:
            report = self._read_until_reported()
            for stream in self._streams.values():
                self._drain(stream)
            return self._outcome(report)
        finally:
            self._close()

    def end(self, *, within: timedelta) -> JobOutcome | None:
        """Waits for the job to end by itself; after `within`, kills the job and returns None.

        Raises:
            SandboxUnavailable: The sandbox itself broke.
        """
        self._deadline = min(self._deadline, time.monotonic() + within.total_seconds())
        outcome = self.finish()
        return None if self._cut_short is JobEnding.OUT_OF_TIME else outcome

    def _descriptors(self, job: Job, theirs: contextlib.ExitStack) -> Iterator[int]:
        """Yields the job's descriptors 0 to 5: input, output, errors, answers, calls, payload."""
        yield _readable(job.standard_input, theirs)
        for name in ("output", "errors"):
            yield self._pipe(name, theirs) if job.keep_output else _nowhere(theirs)
        yield self._pipe("answer", theirs) if job.answers is None else job.answers
        yield _readable(job.calls, theirs)
        yield _readable(json.dumps(dict(job.payload)).encode(), theirs)

    def _pipe(self, name: str, theirs: contextlib.ExitStack) -> int:
        ours, end = os.pipe()
        theirs.callback(os.close, end)
        self._streams[name] = _Stream(ours, self._limits.output_bytes)
        return end

    def _read_until_reported(self) -> JobReport:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            for stream in self._streams.values():
                selector.register(stream, selectors.EVENT_READ)
            while True:
                if time.monotonic() >= self._deadline:
                    self._cut(JobEnding.OUT_OF_TIME)
                for key, _ in selector.select(max(0.0, self._deadline - time.monotonic())):
                    if not isinstance(key.fileobj, _Stream):
                        return self._control.report()
                    self._drain(key.fileobj)
                    if key.fileobj.ended:
                        selector.unregister(key.fileobj)

    def _drain(self, stream: _Stream) -> None:
        stream.read()
        if stream.overflowed:
            self._cut(JobEnding.TOO_MUCH_OUTPUT)

    def _cut(self, why: JobEnding) -> None:
        """Requests that the server kill the job, and sets a short deadline for the report."""
        if self._cut_short is None:
            self._cut_short = why
            self._deadline = time.monotonic() + _ANSWER_KILL_WITHIN
            self._control.send({"kill": self._number})
        elif why is JobEnding.OUT_OF_TIME:
            raise SandboxUnavailable("a sandbox does not answer")

    def _outcome(self, report: JobReport) -> JobOutcome:
        if not report.confined and self._cut_short is None:
            raise SandboxUnavailable("a job was not run, because it could not be confined")
        read = {name: bytes(stream.taken) for name, stream in self._streams.items()}
        return JobOutcome(
            ending=self._cut_short or self._ending(report),
            exit_code=report.exit,
            output=read.get("output", b""),
            errors=read.get("errors", b""),
            answer=read.get("answer", b""),
            cpu=timedelta(seconds=report.cpu_seconds),
            waited=self._cut_short is JobEnding.OUT_OF_TIME,
        )

    def _ending(self, report: JobReport) -> JobEnding:
        if report.signal == signal.SIGXCPU or (
            report.signal == signal.SIGKILL and report.cpu_seconds >= self._limits.cpu_seconds
        ):
            return JobEnding.OUT_OF_TIME
        if report.signal == signal.SIGKILL or report.exit == _EXIT_OUT_OF_MEMORY:
            return JobEnding.OUT_OF_MEMORY  # this module did not request SIGKILL, so the kernel's OOM killer sent it
        return JobEnding.KILLED if report.signal else JobEnding.EXITED

    def _close(self) -> None:
        for stream in self._streams.values():
            stream.close()


class _Stream:
    """The read end of a pipe that a job writes to: never blocks, and keeps at most `most` bytes."""

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor = descriptor
        self._most = most
        self.taken = bytearray()
        self.overflowed = False
        self.ended = False
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> None:
        """Reads all bytes that are available now."""
        while not self.ended:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            room = self._most - len(self.taken)
            self.taken += data[:room]
            self.overflowed = len(data) > room
            self.ended = self.overflowed or not data

    def close(self) -> None:
        os.close(self._descriptor)


def _readable(source: bytes | int, theirs: contextlib.ExitStack) -> int:
    """Returns a sealed descriptor that contains these bytes; or the given descriptor."""
    if isinstance(source, int):
        return source
    if not source:
        return _nowhere(theirs)
    descriptor = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    theirs.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(source)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _ALL_SEALS)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _nowhere(theirs: contextlib.ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    theirs.callback(os.close, descriptor)
    return descriptor
