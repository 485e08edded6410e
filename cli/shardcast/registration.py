"""Registers a checkpoint relay with the pool's orchestrator while the relay serves, and deregisters it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from protocol.clients.relay import RelayClient
from protocol.errors import MusterError
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all

FIRST_PAUSE = timedelta(seconds=1)
"""Pause after the first failure; each further failure doubles the pause, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = timedelta(seconds=60)

_LEAVING = timedelta(seconds=3)
"""Time limit for the deregistration."""

_log = get_logger(__name__)


@asynccontextmanager
async def registered(client: RelayClient, url: str, *, clock: Clock) -> AsyncIterator[None]:
    """Keeps the relay registered while the context is entered.

    If the orchestrator refuses the registration, the relay still serves.
    """
    keeping = asyncio.create_task(keep_registered(client, url, clock=clock))
    try:
        yield
    finally:
        await cancel_all([keeping])
        try:
            async with asyncio.timeout(_LEAVING.total_seconds()):
                await client.leave()
        except (MusterError, TimeoutError):
            _log.warning(
                "relay-not-signed-off",
                reason="the orchestrator was not reached",
                hint="the relay's registration expires by itself",
            )


async def keep_registered(client: RelayClient, url: str, *, clock: Clock) -> None:
    """Registers the relay and renews its registration before it expires, until cancelled.

    After a failure, tries again with back-off.
    """
    failures, said = 0, ""
    while True:
        try:
            lease = await client.register(url)
        except MusterError as error:
            failures += 1
            pause = backoff(FIRST_PAUSE, LONGEST_PAUSE, failures)
            if error.detail != said:
                _log.warning("relay-not-registered", reason=error.detail, hint=error.hint)
            said = error.detail
        else:
            pause = min(max(timedelta(milliseconds=lease.again_in_ms), FIRST_PAUSE), LONGEST_PAUSE)
            if failures or not said:
                _log.info("relay-registered", relay=lease.relay, url=lease.url)
            failures, said = 0, "registered"
        await clock.sleep(pause)
