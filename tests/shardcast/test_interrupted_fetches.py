"""A fetch resumes after an interruption, and ends with a clear error if it can't succeed."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol.errors import Conflict
from protocol.identifiers import digest
from protocol.runtime.clock import ManualClock
from shardcast.client import Client
from shardcast.download.download import Download, Fetched
from shardcast.errors import NoProgress, StaleRelays, VersionDiskFull, VersionDropped, VersionGone
from shardcast.freshness import AnnouncedVersion
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from tests.kit.shardcast import content, eventually, read_folder, write_folder
from tests.shardcast import hostile
from tests.shardcast.hostile import HostileRelay

Clients = Callable[..., Client]
FILES = content(1)
HALF_A_SECOND = timedelta(milliseconds=500)
OTHER = digest(b"\x07" * 32)


class FixedLedger:
    """Stands for the ledger; returns the announcement that the test sets."""

    def __init__(self, announced: AnnouncedVersion | None) -> None:
        self.announced = announced

    async def latest(self) -> AnnouncedVersion | None:
        return self.announced


async def fetch_half(origin: Origin, client: Client, to: Path) -> None:
    """Fetches all full blocks of an unsealed version's largest file, and then cancels the fetch."""
    publication = origin.begin(1, folder=write_folder(origin.folder / "source", FILES))
    await publication.advance("model.safetensors")
    heard = asyncio.Event()
    fetching = asyncio.create_task(
        client.fetch(1, to, on_progress=lambda at: heard.set() if at.done == 5 * BLOCK else None)
    )
    await heard.wait()
    fetching.cancel()
    with suppress(asyncio.CancelledError):
        await fetching


async def test_blocks_fetched_before_an_interruption_are_not_fetched_again(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    async with client_of(origin.url) as client:
        await fetch_half(origin, client, tmp_path / "to")
        assert [path.name for path in (tmp_path / "to").iterdir()] == [".partial-1"]
        with (tmp_path / "to" / ".partial-1" / "model.safetensors").open("r+b") as file:
            file.write(b"spoilt")
        await origin.publish_folder(1, origin.folder / "source")
        fetched = await client.fetch(1, tmp_path / "to")
    assert read_folder(fetched.path) == FILES
    assert fetched.received == BLOCK + sum(map(len, FILES.values())) - 5 * BLOCK


async def test_a_folder_changed_after_completion_is_repaired(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    async with client_of(origin.url) as client:
        path = (await client.fetch(1, tmp_path / "to")).path
        with (path / "model.safetensors").open("r+b") as file:
            file.write(b"spoilt")
        fetched = await client.fetch(1, tmp_path / "to")
    assert read_folder(path) == FILES
    assert fetched.received == BLOCK


async def test_two_fetches_of_a_version_into_one_folder_do_not_interfere(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    origin.begin(1, folder=tmp_path / "source")
    async with client_of(origin.url) as client:
        first = asyncio.create_task(client.fetch(1, tmp_path / "to"))
        await eventually((tmp_path / "to" / ".partial-1" / ".lock").exists)
        with pytest.raises(Conflict, match="another process"):
            await client.fetch(1, tmp_path / "to")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
async def test_a_full_disk_is_reported_and_leaves_no_partial_folder(
    origin: Origin, client_of: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    async with client_of(origin.url) as client:
        with pytest.raises(VersionDiskFull, match="no room"):
            await client.fetch(1, tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


async def test_a_version_pruned_during_the_fetch_is_reported_as_gone(
    origin: Origin, client_of: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardcast.download.transfer._GONE_FOR", HALF_A_SECOND)
    publication = origin.begin(1, folder=write_folder(tmp_path / "source", FILES))
    await publication.advance("model.safetensors")
    async with client_of(origin.url) as client:
        fetching = asyncio.create_task(client.fetch(1, tmp_path / "to"))
        await eventually((tmp_path / "to" / ".partial-1" / "model.safetensors").exists)
        origin.withdraw(publication.local)
        with pytest.raises(VersionGone):
            await fetching
    assert list((tmp_path / "to").iterdir()) == []


async def test_a_version_whose_files_do_not_match_its_blocks_is_dropped_and_the_next_one_fetched(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    publication = origin.begin(1, folder=write_folder(tmp_path / "one", FILES))
    wrong = publication._files
    await publication.advance("model.safetensors")
    wrong["model.safetensors", "full"].sha256 = hashlib.sha256(b"something else")
    async with client_of(origin.url) as client:
        following = client.follow(tmp_path / "to")
        next_one = asyncio.ensure_future(anext(following))
        await origin.finish(publication)
        with pytest.raises(VersionDropped, match="every block"):
            await fetch_with_another_client(client_of, origin, tmp_path / "apart")
        await origin.publish_folder(2, write_folder(tmp_path / "two", content(2)))
        assert (await next_one).version == 2
        await following.aclose()
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["2"]


async def test_a_following_client_retries_a_version_without_progress(
    origin: Origin, client_of: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    run, failures = Download.run, [NoProgress("no relay sends a block")]

    async def failing_once(self: Download) -> Fetched | None:
        if failures:
            raise failures.pop()
        return await run(self)

    monkeypatch.setattr(Download, "run", failing_once)
    with capture_logs() as lines:
        async with client_of(origin.url) as client:
            assert (await anext(client.follow(tmp_path / "to"))).version == 1
    assert [line["event"] for line in lines if line["event"].startswith("version-")] == ["version-retried"]


async def fetch_with_another_client(client_of: Clients, origin: Origin, to: Path) -> None:
    async with client_of(origin.url) as client:
        await client.fetch(1, to)


async def test_the_ledger_decides_the_newest_version_and_its_digest(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    first = await origin.publish_folder(1, write_folder(tmp_path / "one", content(1)))
    await origin.publish_folder(2, write_folder(tmp_path / "two", content(2)))
    ledger = FixedLedger(AnnouncedVersion(1, 1, first.digest))
    async with client_of(origin.url, announcements=ledger) as client:
        assert await client.latest() == VersionKey(1, 1)
        assert (await client.fetch(1, tmp_path / "to")).digest == first.digest
        ledger.announced = AnnouncedVersion(2, 1, OTHER)
        with pytest.raises(VersionDropped, match="announced as"):
            await client.fetch(2, tmp_path / "to")
        assert [path.name for path in (tmp_path / "to").iterdir()] == ["1"]
        ledger.announced = AnnouncedVersion(2, 2, OTHER)
        with pytest.raises(StaleRelays):
            await client.fetch(2, tmp_path / "to")


async def test_relays_without_the_announced_version_are_stale(
    origin: Origin, client_of: Clients, tmp_path: Path, clock: ManualClock
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "one", {"a": b"1"}))
    async with client_of(origin.url, announcements=FixedLedger(AnnouncedVersion(2, 1, OTHER)), clock=clock) as client:
        asked = asyncio.create_task(client.latest())
        while not asked.done():
            await asyncio.sleep(0.01)
            await clock.turn(HALF_A_SECOND)
        with pytest.raises(StaleRelays, match=r"2\.1"):
            await asked


async def test_a_fetch_fails_if_the_publisher_writes_nothing_for_too_long(
    origin: Origin, client_of: Clients, tmp_path: Path, clock: ManualClock
) -> None:
    origin.begin(1, folder=tmp_path / "source")
    async with client_of(origin.url, clock=clock) as client:
        asked = asyncio.create_task(client.fetch(1, tmp_path / "to"))
        await eventually((tmp_path / "to" / ".partial-1").exists)
        while not asked.done():
            await asyncio.sleep(0.01)
            await clock.turn(HALF_A_SECOND)
        with pytest.raises(NoProgress, match="nothing new"):
            await asked
    assert [path.name for path in (tmp_path / "to").iterdir()] == [".partial-1"]


async def test_blocks_of_a_slow_relay_are_also_requested_from_another_relay(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    slow = await stack.enter_async_context(HostileRelay(origin.url, "/files/", hostile.byte_by_byte))
    client = client_of(slow.url, origin.url)
    client.peers[slow.url].bandwidth, client.peers[slow.url].measured = 1e15, True
    await stack.enter_async_context(client)
    fetched = await client.fetch(1, tmp_path / "to")
    assert read_folder(fetched.path) == FILES
    assert slow.faults >= 1
