"""Cache in front of a slow source, such as the chain.

Its limits keep unauthenticated callers from overloading the source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from cachetools import LRUCache

from protocol.errors import NotFound, RateLimited, Unavailable
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Deadline, DeadlinePassed

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupLimits:
    """Limits on the reads of a source and on cached answers.

    `at_once` and `waiting` apply separately to keys with a cached answer and to new keys.
    """

    at_once: int = 8
    """Maximum number of concurrent reads of the source."""
    waiting: int = 256
    """Maximum number of reads that run or are queued. Further reads are refused."""
    remembered: int = 1024
    """Maximum number of entries in each of three caches: answers, protected answers, and keys that the source does not
    know.
    """
    absent: timedelta = timedelta(seconds=2)
    """Time for which a key that the source does not know is not looked up again."""
    answer: timedelta = timedelta(seconds=3)
    """Time limit of a read, and of a caller's wait for a read."""
    pause: timedelta = timedelta(seconds=2)
    """Pause before the source is read again after it was unavailable. Each key with a cached answer has its own pause.
    All new keys share one pause; a read of a new key that exceeds its time limit does not start it.
    """


@dataclass(frozen=True, slots=True)
class _Known(Generic[V]):
    value: V
    at: float


@dataclass(frozen=True, slots=True)
class _Absent:
    error: NotFound
    until: float


class _Lane:
    """Limits concurrent reads.

    Keys with a cached answer and new keys have separate lanes, so that requests for new keys can't block the others.
    """

    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.waiting = 0


class Lookups(Generic[K, V]):
    """A small cache in front of a slow source.

    Callers of `get` with the same key share one read. While the source is unavailable, a cached answer is used up to
    the age `stale`. While the key is being read, or too many reads are queued, a cached answer is used up to `CROWDED`
    times the age `fresh`. When the cache is full, the least recently used answer is dropped. Answers protected by
    `keep` have a separate cache.

    Args:
        read: Function that reads the answer for a key from the source.
        what: Function that describes the read of a key, for errors and logs.
        fresh: Function that returns the age up to which an answer is used without a read.
        stale: Age up to which an answer is used while the source is unavailable, if this is longer than `fresh`.
        clock: Clock that measures the age of answers.
        limits: Limits of reads and of cached answers.
    """

    CROWDED = 4
    """Multiple of `fresh` up to which an answer is used while its key is read or too many reads are queued."""

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
        self._paused_until: LRUCache[K | None, float] = LRUCache(remembered)

    async def get(self, key: K) -> V:
        """Returns the answer for a key.

        Raises:
            NotFound: The source does not know the key, now or within the last `LookupLimits.absent`.
            RateLimited: Too many reads are queued.
            Unavailable: The source can't be read, and no cached answer is young enough.
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
        """Returns the cached answer, whatever its age; never reads the source."""
        known = self._kept.get(key) or self._known.get(key)
        return None if known is None else known.value

    def keep(self, key: K) -> None:
        """Protects a cached answer, so that only other protected answers can displace it."""
        known = self._known.pop(key, None)
        if known is not None:
            self._kept[key] = known

    def forget(self, key: K) -> None:
        """Invalidates a cached answer.

        The result of a read in progress is not cached either.
        """
        self._drop(key)
        self._absent.pop(key, None)
        self._reading.pop(key, None)
        self._paused_until.pop(key, None)

    async def _shared_read(self, key: K, lane: _Lane) -> V:
        paused: K | None = key if lane is self._known_keys else None  # None: the pause that all new keys share
        self._check_pause(paused)
        task = self._reading.get(key)
        if task is None:
            if lane.waiting >= self._limits.waiting:
                raise RateLimited(
                    f"too many look-ups are queued; yours is {self._what(key)}", retry_after=self._limits.pause
                )
            lane.waiting += 1  # counted now, because more callers may arrive before the task starts
            task = asyncio.create_task(self._in_turn(key, lane, paused))
            self._reading[key] = task
            task.add_done_callback(lambda done: self._settle(key, lane, done))
        deadline = Deadline.after(self._limits.answer, clock=self._clock)
        return await deadline.bound(asyncio.shield(task), what=self._what(key))

    async def _in_turn(self, key: K, lane: _Lane, paused: K | None) -> V:
        try:
            async with lane.turns:
                self._check_pause(paused)
                deadline = Deadline.after(self._limits.answer, clock=self._clock)
                return await deadline.bound(self._read(key), what=self._what(key))
        except Unavailable as error:
            _log.warning("look-up-failed", what=self._what(key), reason=error.detail)
            # One slow read of a new key must not stop the reads of all other new keys, which share this pause.
            if paused is not None or not isinstance(error, DeadlinePassed):
                self._paused_until[paused] = self._clock.monotonic() + self._limits.pause.total_seconds()
            raise

    def _settle(self, key: K, lane: _Lane, done: asyncio.Task[V]) -> None:
        lane.waiting -= 1
        failed = (
            done.cancelled() or done.exception() is not None
        )  # `exception()` also tells asyncio that the error was handled
        if self._reading.get(key) is not done:
            return  # `forget` was called during the read, so the result may be outdated
        del self._reading[key]
        if failed:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, NotFound):
                self._drop(key)
                self._absent[key] = _Absent(error, self._clock.monotonic() + self._limits.absent.total_seconds())
            return
        self._absent.pop(key, None)
        self._paused_until.pop(key, None)
        answers = self._kept if key in self._kept else self._known
        answers[key] = _Known(done.result(), self._clock.monotonic())

    def _drop(self, key: K) -> None:
        self._kept.pop(key, None)
        self._known.pop(key, None)

    def _check_absent(self, key: K) -> None:
        absent = self._absent.get(key)
        if absent is not None and self._clock.monotonic() < absent.until:
            raise absent.error.with_traceback(None)  # otherwise the traceback would grow with each caller

    def _check_pause(self, key: K | None) -> None:
        if self._clock.monotonic() < self._paused_until.get(key, 0.0):
            # The error names the chain, because services use this cache only for reads of the chain.
            raise Unavailable(
                "the chain was unavailable a moment ago and is not read again yet",
                hint="try again in some seconds; the service's operator checks its RPC endpoint",
                code="chain-unavailable",
            )
