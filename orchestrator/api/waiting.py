"""Blocking reads: a request waits until a task or node is no longer in the version that the caller knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

from fastapi import Query, Request

from orchestrator.api.streams import LOOK, check_stream_slots
from orchestrator.dependencies import Dependencies
from protocol.errors import RateLimited, Unprocessable
from protocol.wire.base import MAX_INT64

LONGEST_WAIT_S = 30
"""Maximum time of a blocking read, in seconds. Proxies often cut connections after 60 s without an answer."""

CALLERS = 4
"""Number of callers whose blocking reads together can use all places of streams and blocking reads."""

Wait = Annotated[
    int, Query(ge=0, le=LONGEST_WAIT_S, description="Seconds to wait until the version is not `version` any more")
]
Version = Annotated[int | None, Query(ge=0, le=MAX_INT64, description="`version` of the answer that the caller knows")]


async def wait_for_change(
    dependencies: Dependencies,
    request: Request,
    *,
    caller: str,
    wait: int,
    version: int | None,
    current: Callable[[], Awaitable[int]],
) -> None:
    """Returns when the version differs from the caller's, after `wait` seconds, or when the service stops.

    Args:
        dependencies: Dependencies of the orchestrator.
        request: The request. The wait ends early if its client disconnects.
        caller: Name of the token, or address of the manager.
        wait: Maximum wait in seconds; 0 to return at once.
        version: Version that the caller knows.
        current: Function that returns the present version.

    Raises:
        Unprocessable: Only one of `wait` and `version` is given.
        RateLimited: The maximum number of streams and blocking reads is open, or of this caller's blocking reads.
    """
    if (version is None) != (wait == 0):
        raise Unprocessable(
            "a blocking read needs both `wait` and `version`",
            hint="give `wait` in seconds, and as `version` that of the last answer; or neither of them",
        )
    if version is None or await current() != version:
        return
    check_stream_slots(dependencies)
    until = dependencies.clock.monotonic() + wait
    with _place_of(dependencies, caller):
        async with dependencies.stream_slots:
            while (left := until - dependencies.clock.monotonic()) > 0 and not request.app.state.stopping.is_set():
                await dependencies.clock.sleep(min(LOOK, timedelta(seconds=left)))
                if await current() != version or await request.is_disconnected():
                    return


@contextmanager
def _place_of(dependencies: Dependencies, caller: str) -> Iterator[None]:
    """Counts a blocking read of a caller while it waits."""
    waiting, most = dependencies.waiting, max(1, dependencies.settings.streams // CALLERS)
    if waiting[caller] >= most:
        raise RateLimited(
            f"this caller has {most} blocking reads open already",
            retry_after=timedelta(seconds=10),
            hint="wait for their answers, follow `GET /v1/events`, or raise the orchestrator's setting `streams`",
        )
    waiting[caller] += 1
    try:
        yield
    finally:
        waiting[caller] -= 1
        if not waiting[caller]:
            del waiting[caller]
