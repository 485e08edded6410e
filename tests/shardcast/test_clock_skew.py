"""Downloads work with a wrong clock, because the ledger names the newest version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from protocol.runtime.clock import SystemClock
from shardcast.client import Client
from shardcast.freshness import AnnouncedVersion
from shardcast.origin import Origin
from shardcast.relay import Relay
from tests.kit.manifests import PUBLISHER
from tests.kit.shardcast import QUICK, RUN_NAME, content, read_folder, write_folder

Clients = Callable[..., Client]


class SkewedClock(SystemClock):
    """A clock whose time of day is wrong by some hours, while durations are correct."""

    def __init__(self, hours: float) -> None:
        self._off = timedelta(hours=hours)

    def now(self) -> datetime:
        """Returns the wrong time."""
        return super().now() + self._off


class Ledger:
    """Stands for the ledger; the test sets the newest announced version."""

    def __init__(self) -> None:
        self.announced: AnnouncedVersion | None = None

    async def latest(self) -> AnnouncedVersion | None:
        """Returns the newest version."""
        return self.announced


@pytest.mark.parametrize(("of_relay", "of_client"), [(-9, 7), (30, -30), (0, 24 * 400)])
async def test_a_client_with_a_clock_hours_off_fetches_the_announced_version(
    of_relay: float, of_client: float, tmp_path: Path, stack: AsyncExitStack, client_of: Clients
) -> None:
    origin = await stack.enter_async_context(
        Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER, clock=SkewedClock(of_client / 2))
    )
    relay = await stack.enter_async_context(
        Relay(
            tmp_path / "relay",
            upstreams=[origin.url],
            run=RUN_NAME,
            signer=PUBLISHER.address,
            timeouts=QUICK,
            clock=SkewedClock(of_relay),
        )
    )
    ledger = Ledger()
    client = await stack.enter_async_context(
        client_of(relay.url, announcements=ledger, clock=SkewedClock(of_client), allow_plain_http=True)
    )
    for version in (1, 2):
        files = content(version, size=(1 << 20) + version)
        published = await origin.publish_folder(version, write_folder(tmp_path / f"source{version}", files))
        ledger.announced = AnnouncedVersion(version, published.attempt, published.digest)
        latest = await client.latest()
        fetched = await client.fetch(latest.version, tmp_path / "to")
        assert (latest.version, fetched.digest) == (version, published.digest)
        assert read_folder(fetched.path) == files
