"""Measures how full an engine's batch is over time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageSeconds:
    """Seconds since an engine was opened.

    Args:
        total: All seconds.
        idle: Seconds without an answer in the batch.
        under_half: Seconds in which less than half of the batch's rows had an answer, including the idle ones.
    """

    total: float = 0.0
    idle: float = 0.0
    under_half: float = 0.0

    def __sub__(self, other: UsageSeconds) -> UsageSeconds:
        """Returns the seconds between two readings."""
        return UsageSeconds(self.total - other.total, self.idle - other.idle, self.under_half - other.under_half)

    @property
    def busy(self) -> float:
        """Seconds with an answer in the batch."""
        return self.total - self.idle


class BatchUsage:
    """Adds up the time by the number of answers in the batch. Thread-safe.

    Args:
        rows: Maximum answers in the batch.
        clock: Returns seconds; monotonic.
    """

    def __init__(self, rows: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows = rows
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self._growing = 0
        self._total = self._idle = self._under_half = 0.0

    def note(self, growing: int) -> None:
        """Records that the batch has this many answers from now on."""
        with self._lock:
            self._add()
            self._growing = growing

    def read(self) -> UsageSeconds:
        """Returns the seconds up to now."""
        with self._lock:
            self._add()
            return UsageSeconds(self._total, self._idle, self._under_half)

    def _add(self) -> None:
        now = self._clock()
        passed, self._since = now - self._since, now
        self._total += passed
        if not self._growing:
            self._idle += passed
        if 2 * self._growing < self._rows:
            self._under_half += passed
