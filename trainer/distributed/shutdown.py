"""Shutdown of a process: it was asked to end, or its parent is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """Looked at between commands. A follower ends when process 0 says so, and it is told that it should."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._told = False

    @property
    def wanted(self) -> bool:
        """Returns whether the process should end."""
        return self._told or os.getppid() != self._parent

    @contextmanager
    def by_signal(self) -> Iterator[None]:
        """Takes the first Ctrl-C or SIGTERM as a wish; a second one ends the process at once."""

        def told(_: int, __: FrameType | None) -> None:
            self._told = True
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)

        before = {each: signal.signal(each, told) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
