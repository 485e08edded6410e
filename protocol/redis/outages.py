"""Wraps the work of a loop so that an outage of a dependency is not counted as a crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from protocol.errors import Unavailable
from protocol.redis.connection import StoreUnavailable
from protocol.runtime.logs import get_logger

_log = get_logger(__name__)


def patient(name: str, work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
    """Wraps `work` so that an outage of a dependency is logged instead of raised.

    The loop then tries again at its next iteration. Meanwhile the service continues with cached data and stays ready: a
    stalled chain, for example, must not stop heartbeats. Errors of Redis are raised, because no service works without
    Redis.

    Args:
        name: Name of the loop in the log.
        work: One iteration of the loop.
    """
    down = False

    async def attempt() -> None:
        nonlocal down
        try:
            await work()
        except StoreUnavailable:
            raise
        except Unavailable as error:
            if not down:
                _log.warning("waiting", loop=name, error=error.detail, code=error.code)
            down = True
        else:
            if down:
                _log.info("going-on", loop=name)
            down = False

    return attempt
