"""Retries while orchestrator, chain or store is down, for up to `patience_s`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from protocol.errors import MusterError
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Backoff, Deadline, is_retryable, retry
from trainer.errors import NotWritten

T = TypeVar("T")

_log = get_logger(__name__)


class OutageRetry:
    """Retries calls that fail with retryable errors.

    Args:
        clock: Clock of the run.
        longest: Maximum duration of an outage. After it the last error is raised.
        first: Pause before the first retry.
    """

    def __init__(self, *, clock: Clock, longest: timedelta, first: timedelta = timedelta(milliseconds=200)) -> None:
        self._clock = clock
        self._longest = longest
        self._backoff = Backoff(attempts=1_000_000, first=first, most=max(first, timedelta(seconds=5)))

    async def __call__(self, call: Callable[[], Awaitable[T]], *, what: str) -> T:
        """Repeats a call until it succeeds and returns its result.

        Args:
            call: The call.
            what: Description of the call in the log, such as "reading the run".

        Raises:
            MusterError: The last error of the call. An error that is not retryable is raised at once.
        """

        def log_retry(error: BaseException, wait: timedelta) -> None:
            why = error.detail if isinstance(error, MusterError) else type(error).__name__
            _log.warning("trying-again", what=what, why=why, in_s=round(wait.total_seconds(), 1))

        deadline = Deadline.after(self._longest, clock=self._clock)
        return await retry(
            call, clock=self._clock, backoff=self._backoff, deadline=deadline, when=_may_pass, on_retry=log_retry
        )


def _may_pass(error: BaseException) -> bool:
    """Returns whether a retry may help.

    It does not help against write errors of this machine's disk, which a person has to fix.
    """
    return is_retryable(error) and not isinstance(error, NotWritten)
