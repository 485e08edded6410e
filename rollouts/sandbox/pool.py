"""Pool of sandboxes: starts them at the first job, keeps them, and replaces broken ones."""

from __future__ import annotations

import atexit
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from protocol.runtime.logs import get_logger
from rollouts.sandbox.errors import SandboxUnavailable
from rollouts.sandbox.jobs import Job, JobKind, JobOutcome, SandboxKind
from rollouts.sandbox.process import Sandbox
from rollouts.sandbox.settings import Isolation, SandboxSettings

_T = TypeVar("_T")

_log = get_logger(__name__)

WEAKER = (
    "untrusted code runs without namespaces: in a process that can't open files or create processes or connections, "
    "but shares the file system, users and network of this machine or container"
)


class Sandboxes:
    """Sandboxes of every kind; thread-safe.

    Args:
        settings: Isolation, and maximum number of sandboxes per kind; by default from the environment and the
            configuration file.
    """

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings if settings is not None else SandboxSettings.load()
        self._isolation = self._settings.isolation
        self._owner = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._idle: dict[SandboxKind, list[Sandbox]] = defaultdict(list)
        self._places: dict[SandboxKind, threading.BoundedSemaphore] = {}
        atexit.register(self.close)

    @property
    def isolation(self) -> Isolation:
        """Returns the isolation; if the settings leave it open, starts a sandbox to determine it.

        Raises:
            SandboxUnavailable: This machine can't run untrusted code.
        """
        if self._isolation is None:
            with self.borrow(JobKind.SOLUTION):
                pass
        return self._isolation or Isolation.PROCESS

    def run(self, kind: SandboxKind, job: Job) -> JobOutcome:
        """Runs a job, and retries it once in a new sandbox if the first sandbox broke.

        Raises:
            SandboxUnavailable: This machine can't run untrusted code, or two sandboxes broke.
            PreparationFailed: The object that the job needs can't be made from its parameters.
        """

        def attempt() -> JobOutcome:
            with self.borrow(kind) as sandbox:
                return sandbox.run(job)

        return self.twice(attempt)

    def twice(self, attempt: Callable[[], _T]) -> _T:
        """Returns the result of an attempt, and repeats the attempt once if a sandbox broke.

        Raises:
            SandboxUnavailable: A sandbox broke in the second attempt too.
        """
        try:
            return attempt()
        except SandboxUnavailable as error:
            _log.warning("sandbox.broke", reason=error.detail)
        return attempt()

    @contextmanager
    def borrow(self, kind: SandboxKind) -> Iterator[Sandbox]:
        """Yields a sandbox for this thread alone; waits until one is free.

        The sandbox returns to the pool unless the `with` block raises an exception.

        Raises:
            SandboxUnavailable: No sandbox can be started.
        """
        with self._lock:
            places = self._places.setdefault(kind, threading.BoundedSemaphore(self._settings.most))
        with places:
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
        """Ends every sandbox: idle sandboxes now, and busy sandboxes when their job is done."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            idle = [sandbox for kind in self._idle.values() for sandbox in kind]
            self._idle.clear()
        if os.getpid() == self._owner:  # a forked copy of this process owns no sandbox
            for sandbox in idle:
                sandbox.close()

    def _take(self, kind: SandboxKind) -> Sandbox:
        with self._lock:
            if self._idle[kind]:
                return self._idle[kind].pop()
        return self._start(kind)

    def _start(self, kind: SandboxKind) -> Sandbox:
        if self._isolation is not None:
            return Sandbox(kind, self._isolation)
        try:
            sandbox = Sandbox(kind, Isolation.NAMESPACES)
        except SandboxUnavailable as error:
            sandbox = Sandbox(kind, Isolation.PROCESS)
            _log.warning("sandbox.weaker", detail=WEAKER, reason=error.detail)
        self._isolation = sandbox.isolation
        return sandbox
