"""One sandbox: a process that forks jobs. Not thread-safe."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Self

from rollouts.sandbox.control import ObjectPrepared, SandboxControl
from rollouts.sandbox.errors import PreparationFailed, SandboxUnavailable
from rollouts.sandbox.jobs import Job, JobLimits, JobOutcome, PackageJobs, Preparation, SandboxKind
from rollouts.sandbox.launch import prepare
from rollouts.sandbox.running import RunningJob
from rollouts.sandbox.settings import Isolation

START_WITHIN = timedelta(seconds=60)
"""Time-out for starting a sandbox. Importing the libraries for mathematics takes a third of a second on an idle
machine."""

_END_WITHIN = timedelta(seconds=10)
"""Time-out for ending, which takes a few milliseconds on a machine that is not overloaded."""

_END_AFTER = 1.0
"""Seconds from the time-out of a preparation until the server ends itself."""

_MOST_PREPARED = 16
"""Maximum number of objects that a server keeps; a further object replaces the least recently used one."""

_SMALLER = "choose options that make it smaller"
"""Hint of the error for an object that needs too much memory."""

_HIDDEN = ("/etc/passwd", "/etc/hostname", "/proc/self/environ", "/sys/kernel", "/var/lib", "/run")
"""Files that exist on every machine and must be invisible to jobs."""


class Sandbox:
    """A started sandbox whose confinement was verified.

    Args:
        kind: The kind of the sandbox's jobs.
        isolation: The isolation.

    Raises:
        SandboxUnavailable: The sandbox can't be started, or its confinement has a leak.
    """

    def __init__(self, kind: SandboxKind, isolation: Isolation) -> None:
        self.kind = kind
        self.isolation = isolation
        self._start_within = kind.start_within if isinstance(kind, PackageJobs) else START_WITHIN
        self._jobs = 0
        self._prepared: OrderedDict[str, str | None] = OrderedDict()
        self._start_server()

    def _start_server(self) -> None:
        launch = prepare(self.kind, self.isolation)
        self._prepared.clear()
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
            SandboxUnavailable: The sandbox itself broke; the job has no outcome.
            PreparationFailed: The object that the job needs can't be made; close the sandbox.
        """
        return self.start(job).finish()

    def start(self, job: Job) -> RunningJob:
        """Starts a job; the caller must `finish` or `end` it before the next job.

        Raises:
            SandboxUnavailable: The sandbox itself broke.
            PreparationFailed: The object that the job needs can't be made; close the sandbox.
        """
        if job.needs is not None:
            self._prepare(job.needs)
        self._jobs += 1
        return RunningJob(self._control, self._jobs, job)

    def close(self) -> None:
        """Ends the sandbox and its jobs: closing the socket ends the server and its children."""
        self._control.close()
        try:
            self._process.wait(_END_WITHIN.total_seconds())
        except subprocess.TimeoutExpired:
            with contextlib.suppress(PermissionError):  # only root with all capabilities may signal the sandbox's user
                self._process.kill()
                self._process.wait()
        self._stderr.close()

    def _prepare(self, wanted: Preparation) -> None:
        """Makes the server prepare an object, unless the server has the object already.

        The server first frees the objects of the same group. If the group has no object and the server keeps the
        maximum number of objects, it frees the least recently used object. If the object can't be made beside the other
        objects, a new server makes it alone, so that the outcome depends on the object only.
        """
        if wanted.key in self._prepared:
            self._prepared.move_to_end(wanted.key)
            return
        forgotten = [key for key, group in self._prepared.items() if group is not None and group == wanted.group]
        if not forgotten and len(self._prepared) >= _MOST_PREPARED:
            forgotten = [next(iter(self._prepared))]
        answer = self._make(wanted, forget=forgotten)
        if answer.fault and self._prepared:  # the other objects may have used the memory that this object needs
            self.close()
            self._start_server()
            answer = self._make(wanted, forget=[])
        if answer.fault:
            raise PreparationFailed(answer.fault, hint=_SMALLER if answer.out_of_memory else None)
        self._prepared[wanted.key] = wanted.group

    def _make(self, wanted: Preparation, *, forget: Sequence[str]) -> ObjectPrepared:
        for key in forget:
            del self._prepared[key]
        order = {
            "prepare": wanted.key,
            "forget": list(forget),
            "module": wanted.module,
            "payload": dict(wanted.payload),
            "memory_bytes": wanted.memory_bytes,
            "ends_after": wanted.within.total_seconds() + _END_AFTER,
        }
        self._control.send(order)
        return self._control.await_prepared(wanted.key, wanted.within)

    def _prove_namespaces(self) -> None:
        ready = self._control.await_ready(self._start_within)
        if self.isolation is Isolation.NAMESPACES and (ready.pid != 1 or ready.root):
            raise SandboxUnavailable(f"a sandbox came up without its namespaces: {ready}")

    def _prove_confinement(self) -> None:
        may_see_all = self.kind.may_read_files and self.isolation is Isolation.PROCESS
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
