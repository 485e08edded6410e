"""Sandboxes for whoever needs one: started at the first job, kept warm, replaced when they break."""

from __future__ import annotations

import atexit
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

from rollouts.sandbox.errors import SandboxUnavailable
from rollouts.sandbox.jobs import Job, JobKind, JobOutcome
from rollouts.sandbox.process import Sandbox
from rollouts.sandbox.settings import Isolation, SandboxSettings

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

WEAKER = (
    "untrusted code runs without namespaces: in a process that can open no file and make no process or connection, but "
    "on the file system, the users and the network of this machine or container"
)


class Sandboxes:
    """Sandboxes of every kind, for any number of threads.

    Args:
        settings: Which isolation is wanted, and how many of a kind may stand at a time; by default from the environment
            and the configuration file.
    """

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings if settings is not None else SandboxSettings.load()
        self._isolation = self._settings.isolation
        self._owner = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._idle: dict[JobKind, list[Sandbox]] = defaultdict(list)
        self._places: dict[JobKind, threading.BoundedSemaphore] = {
            kind: threading.BoundedSemaphore(self._settings.most) for kind in JobKind
        }
        atexit.register(self.close)

    @property
    def isolation(self) -> Isolation:
        """How sandboxes are kept apart; found out by starting one, if the settings leave it open.

        Raises:
            SandboxUnavailable: Nothing untrusted can be run here.
        """
        if self._isolation is None:
            with self.borrow(JobKind.SOLUTION):
                pass
        return self._isolation or Isolation.PROCESS

    def run(self, kind: JobKind, job: Job) -> JobOutcome:
        """Runs a job; a second time in a new sandbox if the first one broke.

        Raises:
            SandboxUnavailable: Nothing untrusted can be run here, or two sandboxes broke.
        """

        def attempt() -> JobOutcome:
            with self.borrow(kind) as sandbox:
                return sandbox.run(job)

        return self.twice(attempt)

    def twice(self, attempt: Callable[[], _T]) -> _T:
        """Returns what the attempt does; makes it a second time, in new sandboxes, if the first ones broke.

        Raises:
            SandboxUnavailable: They broke again.
        """
        try:
            return attempt()
        except SandboxUnavailable as error:
            _log.warning("sandbox.broke", reason=error.detail)
        return attempt()

    @contextmanager
    def borrow(self, kind: JobKind) -> Iterator[Sandbox]:
        """A sandbox for this thread alone; waits for a place. It is given back unless the block raises.

        Raises:
            SandboxUnavailable: None can be started.
        """
        with self._places[kind]:
            sandbox = self._take(kind)
            try:
                yield sandbox
            except BaseException:
                sandbox.close()
                raise
            with self._lock:
                if not (closed := self._closed):
                    self._idle[kind].append(sandbox)
            if closed:
                sandbox.close()

    def close(self) -> None:
        """Ends every sandbox: those that stand idle now, and one that is at work when its job is done."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            idle = [sandbox for kind in self._idle.values() for sandbox in kind]
            self._idle.clear()
        if os.getpid() == self._owner:  # a forked copy of this process does not own them
            for sandbox in idle:
                sandbox.close()

    def _take(self, kind: JobKind) -> Sandbox:
        with self._lock:
            if self._idle[kind]:
                return self._idle[kind].pop()
        return self._start(kind)

    def _start(self, kind: JobKind) -> Sandbox:
        if self._isolation is not None:
            return Sandbox(kind, self._isolation)
        try:
            sandbox = Sandbox(kind, Isolation.NAMESPACES)
        except SandboxUnavailable as error:
            sandbox = Sandbox(kind, Isolation.PROCESS)
            _log.warning("sandbox.weaker", detail=WEAKER, reason=error.detail)
        self._isolation = sandbox.isolation
        return sandbox
