"""Background loops of a service.

A loop restarts after a crash, reports its state to readiness checks, and ends with the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from protocol.errors import MusterError, Unavailable
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import jittered
from protocol.runtime.waiting import sleep_or

_log = get_logger(__name__)

FIRST_PAUSE = timedelta(milliseconds=500)
"""Ceiling of the pause after the first crash; it doubles with each further crash in a row."""
LONGEST_PAUSE = timedelta(seconds=30)
"""Maximum pause after a crash."""


class LoopStalled(Unavailable):
    """A background loop crashes repeatedly, or has not completed an iteration for too long."""

    code = "loop-stalled"


@dataclass(slots=True)
class LoopState:
    """State of a background loop."""

    name: str
    rounds: int = 0
    """Number of successful iterations."""
    crashes: int = 0
    """Number of crashes since the service started."""
    crashes_in_a_row: int = 0
    """Number of crashes since the last successful iteration."""
    last_round: datetime | None = None
    """Time of the last successful iteration."""
    last_error: str = ""
    """Text of the newest crash's error; empty if there was no crash."""
    _last_sign: float = 0.0
    """Monotonic time, in seconds, of the loop's start or of its last success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    name: str
    work: Callable[[], Awaitable[None]]
    every: timedelta | None
    stalled_after: timedelta | None
    woken: asyncio.Event | None


class BackgroundLoops:
    """Context manager that runs background loops.

    A loop that crashes is restarted after a pause, which grows with each crash in a row and has jitter.

    Args:
        clock: Clock that measures pauses and stalls.
        drain: Maximum time that the context waits for cancelled loops to end.
    """

    def __init__(self, *, clock: Clock, drain: timedelta = timedelta(seconds=10)) -> None:
        self._clock = clock
        self._drain = drain
        self._loops: list[_Loop] = []
        self._states: dict[str, LoopState] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()

    def add(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        *,
        every: timedelta | None = None,
        stalled_after: timedelta | None = None,
        woken: asyncio.Event | None = None,
    ) -> None:
        """Adds a loop; starts it at once if the context has been entered.

        Args:
            name: Name of the loop in logs and in `/readyz`.
            work: One iteration of the loop, if `every` is given. Otherwise work that runs until it is cancelled, and
                that calls `beat` after each success.
            every: Pause between the end of one iteration and the start of the next.
            stalled_after: Time without a success after which the loop counts as stalled and the service as not ready.
            woken: Event that ends the pause after a successful iteration; the loop clears it before each iteration.
        """
        if name in self._states:
            raise ValueError(f"a loop with the name {name} exists already")
        loop = _Loop(name=name, work=work, every=every, stalled_after=stalled_after, woken=woken)
        self._loops.append(loop)
        self._states[name] = LoopState(name)
        if self._tasks:
            self._start(loop)

    def beat(self, name: str) -> None:
        """Records that the loop `name` is alive and has succeeded."""
        state = self._states[name]
        state.rounds += 1
        state.crashes_in_a_row = 0
        state.last_round = self._clock.now()
        state._last_sign = self._clock.monotonic()

    def states(self) -> list[LoopState]:
        """Returns the state of each loop."""
        return list(self._states.values())

    async def check(self) -> None:
        """Checks that no loop crashes repeatedly or is stalled; a readiness check.

        Raises:
            LoopStalled: A loop crashed three or more times in a row, or had no success for `stalled_after`.
        """
        now = self._clock.monotonic()
        for loop in self._loops:
            state = self._states[loop.name]
            if state.crashes_in_a_row >= 3:
                raise LoopStalled(f"{loop.name} crashed {state.crashes_in_a_row} times in a row: {state.last_error}")
            if loop.stalled_after is not None and now - state._last_sign > loop.stalled_after.total_seconds():
                raise LoopStalled(f"{loop.name} has completed no iteration for {now - state._last_sign:.0f} s")

    async def __aenter__(self) -> Self:
        self._ending.clear()
        for loop in self._loops:
            self._start(loop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, []
        self._ending.set()
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._drain.total_seconds())
            for task in late:
                _log.warning("loop-did-not-end", loop=task.get_name())

    def _start(self, loop: _Loop) -> None:
        self._states[loop.name]._last_sign = self._clock.monotonic()
        self._tasks.append(asyncio.create_task(self._keep_running(loop), name=loop.name))

    async def _keep_running(self, loop: _Loop) -> None:
        state = self._states[loop.name]
        while not self._ending.is_set():
            if loop.woken is not None:
                loop.woken.clear()  # cleared before the work: an event during the work ends the next pause
            woken = loop.woken
            try:
                await loop.work()
            except Exception as error:  # noqa: BLE001 - only cancellation ends a loop
                if self._ending.is_set():
                    return  # a library converted the cancellation, which asyncio delivers only once, to this error
                pause, woken = self._note_crash(state, error), None
            else:
                self.beat(loop.name)
                # Work without `every` should not return. If it does, it is started again after `FIRST_PAUSE`.
                pause = FIRST_PAUSE if loop.every is None else loop.every
            if not self._ending.is_set():
                await self._pause(pause, woken)

    async def _pause(self, pause: timedelta, woken: asyncio.Event | None) -> None:
        if woken is None:
            await self._clock.sleep(pause)
        else:
            await sleep_or(self._clock, pause, woken)

    def _note_crash(self, state: LoopState, error: Exception) -> timedelta:
        state.crashes += 1
        state.crashes_in_a_row += 1
        state.last_error = error.detail if isinstance(error, MusterError) else type(error).__name__
        pause = jittered(backoff(FIRST_PAUSE, LONGEST_PAUSE, state.crashes_in_a_row))
        _log.error(
            "loop-crashed",
            loop=state.name,
            in_a_row=state.crashes_in_a_row,
            again_in_s=round(pause.total_seconds(), 1),
            exc_info=None if isinstance(error, MusterError) else error,
            error=state.last_error,
        )
        return pause
