"""Shutdown request of a process: a signal arrived, or its parent has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """Shutdown request of this process, checked between commands.

    A process other than process 0 reports its request to process 0, which ends the run for all processes.
    """

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._requested = False

    @property
    def wanted(self) -> bool:
        """Returns whether the process should end."""
        return self._requested or os.getppid() != self._parent

    @contextmanager
    def by_signal(self) -> Iterator[None]:
        """Records the first Ctrl-C or SIGTERM as a request; a second one ends the process at once."""

        def request(_: int, __: FrameType | None) -> None:
            self._requested = True
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)

        before = {each: signal.signal(each, request) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
