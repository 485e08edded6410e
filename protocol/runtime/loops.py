"""Background loops of a service: restarted after crashes, with state for readiness checks, ended with the service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import structlog

from protocol.errors import MusterError, Unavailable
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import jittered
from protocol.runtime.waiting import sleep_or

_log = structlog.get_logger(__name__)

FIRST_PAUSE = timedelta(milliseconds=500)
LONGEST_PAUSE = timedelta(seconds=30)


class LoopStalled(Unavailable):
    """A background loop crashes repeatedly, or has not completed an iteration for too long."""

    code = "loop-stalled"


@dataclass(slots=True)
class LoopState:
    """State of a loop."""

    name: str
    rounds: int = 0
    """Number of successful iterations."""
    crashes: int = 0
    """Number of crashes since the start."""
    crashes_in_a_row: int = 0
    last_round: datetime | None = None
    """Time of the last successful iteration."""
    last_error: str = ""
    _last_sign: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    name: str
    work: Callable[[], Awaitable[None]]
    every: timedelta | None
    stalled_after: timedelta | None
    woken: asyncio.Event | None


class BackgroundLoops:
    """Context manager that runs loops, and restarts each after a crash with growing, jittered pauses.

    Args:
        clock: Clock of pauses.
        drain: How long loops may take to end when they are cancelled.
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
        """Adds a loop.

        Args:
            name: Name in logs and in `/readyz`.
            work: One iteration, if `every` is given; else work that runs until it is cancelled and calls `beat`.
            every: Pause from the end of one iteration to the start of the next.
            stalled_after: Time without a successful iteration after which the service is not ready.
            woken: Event that ends the pause after a successful iteration; the loop clears it before each iteration.
        """
        if name in self._states:
            raise ValueError(f"there is a loop {name} already")
        loop = _Loop(name=name, work=work, every=every, stalled_after=stalled_after, woken=woken)
        self._loops.append(loop)
        self._states[name] = LoopState(name)
        if self._tasks:
            self._start(loop)

    def beat(self, name: str) -> None:
        """Records that the loop `name` is alive and its last work succeeded."""
        state = self._states[name]
        state.rounds += 1
        state.crashes_in_a_row = 0
        state.last_round = self._clock.now()
        state._last_sign = self._clock.monotonic()

    def states(self) -> list[LoopState]:
        """Returns the state of each loop."""
        return list(self._states.values())

    async def check(self) -> None:
        """Returns if no loop crashes repeatedly or is stalled; a readiness check.

        Raises:
            LoopStalled: At least one loop crashes repeatedly or is stalled.
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
                loop.woken.clear()  # cleared first, so that a wake-up during the iteration skips the next pause
            woken = loop.woken
            try:
                await loop.work()
            except Exception as error:  # noqa: BLE001 - a loop survives every exception of an iteration but cancellation
                if self._ending.is_set():
                    return  # a library may convert the cancellation, which is delivered only once, to its own error
                pause, woken = self._note_crash(state, error), None
            else:
                self.beat(loop.name)
                # Work without `every` should not return; if it does, it is restarted after the first pause.
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
