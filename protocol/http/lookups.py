"""Cache in front of a slow source, with limits so that unauthenticated callers can't overload the source."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

import structlog
from cachetools import LRUCache

from protocol.errors import NotFound, RateLimited, Unavailable
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Deadline, DeadlinePassed

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupLimits:
    """Limits of look-ups. `at_once` and `waiting` apply separately to keys with a cached answer and to new keys."""

    at_once: int = 8
    """Maximum number of concurrent reads of the source."""
    waiting: int = 256
    """Maximum number of reads that run or are queued; more are refused."""
    remembered: int = 1024
    """Size of each cache: of answers, of protected answers, and of keys that the source does not know."""
    absent: timedelta = timedelta(seconds=2)
    """Time for which an unknown key is not looked up again."""
    answer: timedelta = timedelta(seconds=3)
    """Time limit of a read, and of a caller's wait for it."""
    rest: timedelta = timedelta(seconds=2)
    """Pause before the source is read again after it was unavailable. Each known key has its own pause. All new keys
    share one pause, which a time-out does not start."""


@dataclass(frozen=True, slots=True)
class _Known(Generic[V]):
    value: V
    at: float


@dataclass(frozen=True, slots=True)
class _Absent:
    error: NotFound
    until: float


class _Lane:
    """Limits concurrent reads. Keys with a cached answer and new keys have separate lanes."""

    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.waiting = 0


class Lookups(Generic[K, V]):
    """A small cache in front of a slow source.

    Callers that want the same key share one read. While the source is unavailable, a cached answer is used up to the
    age `stale`. While a read is in progress or too many reads are queued, a cached answer is used up to `CROWDED` times
    the age `fresh`. The least recently used answers are dropped first; those protected by `keep` have a cache of their
    own.

    Args:
        read: Reads the source.
        what: Returns the description of a read, for errors.
        fresh: Age up to which an answer is used without a read.
        stale: Age up to which an answer is used while the source is unavailable; at least `fresh` applies.
        clock: Measures ages.
        limits: Limits of reads and of cached answers.
    """

    CROWDED = 4

    def __init__(
        self,
        read: Callable[[K], Awaitable[V]],
        *,
        what: Callable[[K], str],
        fresh: Callable[[V], timedelta],
        stale: timedelta,
        clock: Clock,
        limits: LookupLimits | None = None,
    ) -> None:
        self._read = read
        self._what = what
        self._fresh = fresh
        self._stale = stale.total_seconds()
        self._clock = clock
        self._limits = limits or LookupLimits()
        remembered = self._limits.remembered
        self._known: LRUCache[K, _Known[V]] = LRUCache(remembered)
        self._kept: LRUCache[K, _Known[V]] = LRUCache(remembered)
        self._absent: LRUCache[K, _Absent] = LRUCache(remembered)
        self._reading: dict[K, asyncio.Task[V]] = {}
        self._known_keys = _Lane(self._limits.at_once)
        self._new_keys = _Lane(self._limits.at_once)
        self._rests: LRUCache[K | None, float] = LRUCache(remembered)

    async def get(self, key: K) -> V:
        """Returns the answer for a key.

        Raises:
            NotFound: The source does not know the key, or did not know it less than `LookupLimits.absent` ago.
            RateLimited: Too many reads are queued.
            Unavailable: The source can't be read, and the last answer is too old.
            MusterError: Any other error of the source.
        """
        known = self._kept.get(key) or self._known.get(key)
        if known is None:
            self._check_absent(key)
            return await self._shared_read(key, self._new_keys)
        fresh = self._fresh(known.value).total_seconds()
        age = self._clock.monotonic() - known.at
        if age < fresh or (key in self._reading and age < self.CROWDED * fresh):
            return known.value
        try:
            return await self._shared_read(key, self._known_keys)
        except RateLimited:
            if age >= self.CROWDED * fresh:
                raise
        except Unavailable:
            if age >= max(fresh, self._stale):
                raise
        return known.value

    def known(self, key: K) -> V | None:
        """Returns the cached answer, of any age; never reads the source."""
        known = self._kept.get(key) or self._known.get(key)
        return None if known is None else known.value

    def keep(self, key: K) -> None:
        """Protects a cached answer: only other protected answers can evict it."""
        known = self._known.pop(key, None)
        if known is not None:
            self._kept[key] = known

    def forget(self, key: K) -> None:
        """Invalidates an entry; the result of a read in progress is not cached either."""
        self._drop(key)
        self._absent.pop(key, None)
        self._reading.pop(key, None)
        self._rests.pop(key, None)

    async def _shared_read(self, key: K, lane: _Lane) -> V:
        rest: K | None = key if lane is self._known_keys else None
        self._check_rest(rest)
        task = self._reading.get(key)
        if task is None:
            if lane.waiting >= self._limits.waiting:
                raise RateLimited(f"too many others wait for {self._what(key)}", retry_after=self._limits.rest)
            lane.waiting += 1  # counted before the task starts: many callers may arrive until it runs
            task = asyncio.create_task(self._in_turn(key, lane, rest))
            self._reading[key] = task
            task.add_done_callback(lambda done: self._settle(key, lane, done))
        deadline = Deadline.after(self._limits.answer, clock=self._clock)
        return await deadline.bound(asyncio.shield(task), what=self._what(key))

    async def _in_turn(self, key: K, lane: _Lane, rest: K | None) -> V:
        try:
            async with lane.turns:
                self._check_rest(rest)
                deadline = Deadline.after(self._limits.answer, clock=self._clock)
                return await deadline.bound(self._read(key), what=self._what(key))
        except Unavailable as error:
            _log.warning("look-up-failed", what=self._what(key), reason=error.detail)
            # A slow read of one new key must not delay reads of other keys.
            if rest is not None or not isinstance(error, DeadlinePassed):
                self._rests[rest] = self._clock.monotonic() + self._limits.rest.total_seconds()
            raise

    def _settle(self, key: K, lane: _Lane, done: asyncio.Task[V]) -> None:
        lane.waiting -= 1
        failed = done.cancelled() or done.exception() is not None  # marks the exception as retrieved
        if self._reading.get(key) is not done:
            return  # the entry was invalidated during the read, so this result may be outdated
        del self._reading[key]
        if failed:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, NotFound):
                self._drop(key)
                self._absent[key] = _Absent(error, self._clock.monotonic() + self._limits.absent.total_seconds())
            return
        self._absent.pop(key, None)
        self._rests.pop(key, None)
        answers = self._kept if key in self._kept else self._known
        answers[key] = _Known(done.result(), self._clock.monotonic())

    def _drop(self, key: K) -> None:
        self._kept.pop(key, None)
        self._known.pop(key, None)

    def _check_absent(self, key: K) -> None:
        absent = self._absent.get(key)
        if absent is not None and self._clock.monotonic() < absent.until:
            raise absent.error.with_traceback(None)  # otherwise the traceback would grow with each caller

    def _check_rest(self, key: K | None) -> None:
        if self._clock.monotonic() < self._rests.get(key, 0.0):
            raise Unavailable(
                "the chain was unavailable a moment ago and is not read again yet", code="chain-unavailable"
            )
