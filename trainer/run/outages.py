"""Waiting for what is down: orchestrator, chain and store may be gone for as long as the settings say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import structlog

from protocol.errors import MusterError
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Backoff, Deadline, is_retryable, retry
from trainer.errors import NotWritten

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class OutageRetry:
    """Calls again what may work later.

    Args:
        clock: Whose time is waited.
        longest: How long something may be down; then its error is raised.
        first: The first pause.
    """

    def __init__(self, *, clock: Clock, longest: timedelta, first: timedelta = timedelta(milliseconds=200)) -> None:
        self._clock = clock
        self._longest = longest
        self._backoff = Backoff(attempts=1_000_000, first=first, most=max(first, timedelta(seconds=5)))

    async def __call__(self, call: Callable[[], Awaitable[T]], *, what: str) -> T:
        """Returns what the call gives, in the end.

        Raises:
            MusterError: What it raised last; at once if trying again can't help.
        """

        def tell(error: BaseException, wait: timedelta) -> None:
            why = error.detail if isinstance(error, MusterError) else type(error).__name__
            _log.warning("trying-again", what=what, why=why, in_s=round(wait.total_seconds(), 1))

        deadline = Deadline.after(self._longest, clock=self._clock)
        return await retry(
            call, clock=self._clock, backoff=self._backoff, deadline=deadline, when=_may_pass, on_retry=tell
        )


def _may_pass(error: BaseException) -> bool:
    """Returns whether waiting may help; a local disk error needs a person."""
    return is_retryable(error) and not isinstance(error, NotWritten)
