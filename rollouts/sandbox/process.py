"""One sandbox: a process that forks jobs. Not thread-safe."""

from __future__ import annotations

import contextlib
import os
import subprocess
from datetime import timedelta
from typing import Self

from rollouts.sandbox.control import SandboxControl
from rollouts.sandbox.errors import SandboxUnavailable
from rollouts.sandbox.jobs import Job, JobKind, JobLimits, JobOutcome
from rollouts.sandbox.launch import prepare
from rollouts.sandbox.running import RunningJob
from rollouts.sandbox.settings import Isolation

START_WITHIN = timedelta(seconds=60)
"""Time-out for starting. Importing the libraries of the mathematics kind takes a third of a second when idle."""

_END_WITHIN = timedelta(seconds=10)
"""Time-out for ending, which takes a few milliseconds on a machine that is not overloaded."""

_HIDDEN = ("/etc/passwd", "/etc/hostname", "/proc/self/environ", "/sys/kernel", "/var/lib", "/run")
"""Files that exist on every machine and must be invisible to jobs."""


class Sandbox:
    """A started sandbox whose confinement was verified.

    Args:
        kind: The kind of its jobs.
        isolation: The isolation.

    Raises:
        SandboxUnavailable: The sandbox can't be started, or its confinement has a leak.
    """

    def __init__(self, kind: JobKind, isolation: Isolation) -> None:
        launch = prepare(kind, isolation)
        self.kind = kind
        self.isolation = isolation
        self._jobs = 0
        try:
            with contextlib.ExitStack() as opened:
                self._control = SandboxControl()
                opened.callback(self._control.close)
                self._stderr = opened.enter_context(os.fdopen(os.memfd_create("said"), "w+b"))  # needs no disk
                self._process = subprocess.Popen(
                    launch.command,
                    stdin=self._control.theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    env=launch.environment,
                    cwd=launch.directory,
                    start_new_session=True,
                )
                opened.pop_all()
        except OSError as error:  # e.g. no processes, memory or descriptors left
            raise SandboxUnavailable(f"a sandbox can't be started: {error}") from error
        self._control.theirs.close()
        try:
            self._control.send(dict(launch.orders))
            self._prove_namespaces()
            self._prove_confinement()
        except SandboxUnavailable as error:
            reason = self._stderr_tail()
            self.close()
            raise SandboxUnavailable(f"{error.detail}{reason}", hint=error.hint) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Pid of the process that was started."""
        return self._process.pid

    def run(self, job: Job) -> JobOutcome:
        """Runs a job until it ends.

        Raises:
            SandboxUnavailable: The sandbox itself broke; nothing is known about the job.
        """
        return self.start(job).finish()

    def start(self, job: Job) -> RunningJob:
        """Starts a job; `finish` or `end` it before the next one.

        Raises:
            SandboxUnavailable: The sandbox itself broke.
        """
        self._jobs += 1
        return RunningJob(self._control, self._jobs, job)

    def close(self) -> None:
        """Ends the sandbox and its jobs: closing the socket ends the server and its children."""
        self._control.close()
        try:
            self._process.wait(_END_WITHIN.total_seconds())
        except subprocess.TimeoutExpired:
            with contextlib.suppress(PermissionError):  # only root with all capabilities may signal its unique user
                self._process.kill()
                self._process.wait()
        self._stderr.close()

    def _prove_namespaces(self) -> None:
        ready = self._control.await_ready(START_WITHIN)
        if self.isolation is Isolation.NAMESPACES and (ready.pid != 1 or ready.root):
            raise SandboxUnavailable(f"a sandbox came up without its namespaces: {ready}")

    def _prove_confinement(self) -> None:
        may_see_all = self.kind is JobKind.MATHEMATICS and self.isolation is Isolation.PROCESS
        hidden = [] if may_see_all else [path for path in _HIDDEN if os.path.exists(path)]  # noqa: PTH110 - as in jobs
        outcome = self.run(
            Job(module="inside.probe", payload={"hidden": [*hidden]}, limits=JobLimits(memory_bytes=4 << 30))
        )
        leaks = outcome.answer.decode(errors="replace")
        if not outcome.succeeded or leaks:
            raise SandboxUnavailable(
                f"a sandbox leaks here: {outcome.ending.value}, a job could {leaks.replace(chr(10), ', ')}",
                hint="don't run untrusted code on this machine; report this with the kernel's version",
            )

    def _stderr_tail(self) -> str:
        self._stderr.seek(0)
        text = self._stderr.read(2000).decode(errors="replace").strip()
        return f": {text[-500:]}" if text else ""
