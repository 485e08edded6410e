"""Deadlines, and retries that are limited in number and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from protocol.errors import MusterError, Unavailable
from protocol.runtime.clock import Clock
from protocol.runtime.waiting import cancel_all, wait_first

T = TypeVar("T")


class DeadlinePassed(Unavailable):
    """An operation was not done within its time limit."""

    code = "deadline-passed"


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time limit of an operation, as a moment on a clock."""

    clock: Clock
    at: float
    """Monotonic time of the clock at the deadline, in seconds."""

    @classmethod
    def after(cls, duration: timedelta, *, clock: Clock) -> Deadline:
        """Returns the deadline `duration` from now."""
        return cls(clock, clock.monotonic() + duration.total_seconds())

    @property
    def remaining(self) -> timedelta:
        """Returns the time left; zero after the deadline."""
        return timedelta(seconds=max(0.0, self.at - self.clock.monotonic()))

    @property
    def passed(self) -> bool:
        """Returns whether the deadline has passed."""
        return self.clock.monotonic() >= self.at

    async def bound(self, work: Awaitable[T], *, what: str) -> T:
        """Returns the result of `work`; cancels `work` when the deadline passes.

        `what` names the work in the error.

        Raises:
            DeadlinePassed: The deadline passed before `work` ended.
        """
        running = asyncio.ensure_future(work)
        try:
            await wait_first(self.clock.sleep(self.remaining), tasks=[running])
            if running.done():
                return running.result()
            raise DeadlinePassed(f"{what} was not done in time", hint="the peer is slow or down; try again later")
        finally:
            await cancel_all([running])


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Limits of retries.

    Each pause is random between zero and a ceiling, which doubles with each retry (full jitter).
    """

    attempts: int = 5
    """Maximum number of attempts, including the first one."""
    first: timedelta = timedelta(milliseconds=200)
    """Upper bound of the first pause."""
    most: timedelta = timedelta(seconds=10)
    """Upper bound of every pause."""
    longest_ask: timedelta = timedelta(minutes=2)
    """Longest `Retry-After` that is obeyed. If a peer asks for a longer pause, the error is raised."""


DEFAULT_BACKOFF = Backoff()


def is_retryable(error: BaseException) -> bool:
    """Returns whether the error is a `MusterError` with `retryable` set."""
    return isinstance(error, MusterError) and error.retryable


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    clock: Clock,
    backoff: Backoff = DEFAULT_BACKOFF,
    deadline: Deadline | None = None,
    when: Callable[[BaseException], bool] = is_retryable,
    on_retry: Callable[[BaseException, timedelta], None] | None = None,
) -> T:
    """Repeats a call until it succeeds; raises the last error when the retries end.

    Retries end at an error for which `when` returns False, after `backoff.attempts` calls, or if the next pause would
    end after the deadline. The `retry_after` of an error is added to the pause.

    Args:
        call: Function that returns a new awaitable for each attempt.
        clock: Clock that measures the pauses.
        backoff: Number of attempts and the pauses between them.
        deadline: No retry starts after this time, even if `backoff` allows more.
        when: Function that returns whether the call is repeated after an error.
        on_retry: Function that is called before each pause, with the error and the pause.
    """
    ceiling = wait_random_exponential(multiplier=backoff.first.total_seconds(), max=backoff.most.total_seconds())

    def wait(state: RetryCallState) -> float:
        error = _error(state)
        if isinstance(error, MusterError) and error.retry_after is not None:
            return error.retry_after.total_seconds() + ceiling(state)
        return ceiling(state)

    def stop(state: RetryCallState) -> bool:
        error = _error(state)
        pause = error.retry_after if isinstance(error, MusterError) else None
        if pause is not None and pause > backoff.longest_ask:
            return True
        wait_s = state.upcoming_sleep
        return deadline is not None and (deadline.passed or wait_s >= deadline.remaining.total_seconds())

    def tell(state: RetryCallState) -> None:
        if on_retry is not None and (error := _error(state)) is not None:
            on_retry(error, timedelta(seconds=state.upcoming_sleep))

    async def sleep(seconds: float) -> None:
        await clock.sleep(timedelta(seconds=seconds))

    async for attempt in AsyncRetrying(
        sleep=sleep,
        wait=wait,
        stop=_either(stop_after_attempt(backoff.attempts), stop),
        retry=retry_if_exception(when),
        before_sleep=tell,
        reraise=True,
    ):
        with attempt:
            return await call()
    raise AssertionError("tenacity either returns or raises")


def _either(
    first: Callable[[RetryCallState], bool], second: Callable[[RetryCallState], bool]
) -> Callable[[RetryCallState], bool]:
    return lambda state: first(state) or second(state)


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
