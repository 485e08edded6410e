"""Keeps a checkpoint relay on the pool's list while it serves, and takes it off when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog

from protocol.clients.relay import RelayClient
from protocol.errors import MusterError
from protocol.runtime.clock import Clock

FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=60)
"""After a failure; each one in a row doubles it."""

_LEAVING = timedelta(seconds=3)

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def registered(client: RelayClient, url: str, *, clock: Clock) -> AsyncIterator[None]:
    """Keeps the relay registered meanwhile. It serves on whatever the orchestrator says, and is said to be refused."""
    keeping = asyncio.create_task(keep_registered(client, url, clock=clock))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        try:
            async with asyncio.timeout(_LEAVING.total_seconds()):
                await client.leave()
        except (MusterError, TimeoutError):
            _log.warning(
                "relay-not-signed-off", reason="the orchestrator was not reached", hint="its lease ends by itself"
            )


async def keep_registered(client: RelayClient, url: str, *, clock: Clock) -> None:
    """Registers, and again before the lease ends; after a failure sooner, then less and less often. Never ends."""
    failures, said = 0, ""
    while True:
        try:
            lease = await client.register(url)
        except MusterError as error:
            pause = min(FIRST_PAUSE * 2 ** min(failures, 6), LONGEST_PAUSE)
            failures += 1
            if error.detail != said:
                _log.warning("relay-not-registered", reason=error.detail, hint=error.hint)
            said = error.detail
        else:
            pause = min(max(timedelta(milliseconds=lease.again_in_ms), FIRST_PAUSE), LONGEST_PAUSE)
            if failures or not said:
                _log.info("relay-registered", relay=lease.relay, url=lease.url)
            failures, said = 0, "registered"
        await clock.sleep(pause)
