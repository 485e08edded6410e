"""Event loop without input and output, for coroutines whose result must not depend on time.

Timers fire in order of their time, and the loop's clock jumps to the next timer instead of waiting. The loop opens no
file descriptor, so it works in jobs of a sandbox, which can't make sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class WaitsForOutsideError(RuntimeError):
    """A coroutine waits for something other than a timer or another coroutine, such as a connection."""


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine in a new loop, and returns its result.

    Raises:
        WaitsForOutsideError: The coroutine waits for something that never happens here.
    """
    loop = _TimerLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


class _TimerLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = _NoSelector(self)

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def run_in_executor(self, executor: object, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        """Runs the function at once, because threads would race with the clock."""
        del executor
        future: asyncio.Future[_T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller awaits the future, and gets any exception
            future.set_exception(error)
        return future

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...


class _NoSelector:
    """Stands in for the selector: passes the time until the next timer."""

    def __init__(self, loop: _TimerLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> tuple[()]:
        if timeout is None:
            raise WaitsForOutsideError("it waits for a connection, a process or a thread; there are none here")
        self._loop.advance(timeout)
        return ()
