"""A relay serves verified blocks at once, holds the newest versions, and survives crashes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

from protocol.runtime.budgets import KeepRule, Needs
from shardcast.client import Client
from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from shardcast.relay import Relay
from tests.kit.shardcast import (
    complete,
    content,
    eventually,
    read_folder,
    relay_of,
    status_of,
    total,
    write_folder,
)

Clients = Callable[..., Client]


def over_budget(relay: Relay) -> float:
    [metric] = relay.metrics.over_budget.collect()
    return metric.samples[0].value


async def test_a_version_passes_through_a_chain_of_relays(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    upper = await stack.enter_async_context(relay_of(tmp_path / "upper", origin.url))
    lower = await stack.enter_async_context(relay_of(tmp_path / "lower", upper.url))
    client = await stack.enter_async_context(client_of(lower.url))
    following = client.follow(tmp_path / "to")
    files = content(1)
    published = await origin.publish_folder(1, write_folder(tmp_path / "source", files))
    fetched = await anext(following)
    assert fetched.digest == published.digest
    assert read_folder(fetched.path) == files


async def test_a_block_reaches_the_client_before_the_next_one_is_written(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    relays = [await stack.enter_async_context(relay_of(tmp_path / name, origin.url)) for name in ("one", "two")]
    client = await stack.enter_async_context(client_of(*(relay.url for relay in relays)))
    heard: asyncio.Queue[int] = asyncio.Queue()
    following = client.follow(tmp_path / "to", on_progress=lambda progress: heard.put_nowait(progress.done))
    data = content(2)["model.safetensors"]
    async with origin.publish(version=1) as writing:
        fetching = asyncio.ensure_future(anext(following))
        for at in range(0, len(data), BLOCK):
            await writing.write("model.safetensors", data[at : at + BLOCK])
            while at + BLOCK <= len(data) and await heard.get() < at + BLOCK:
                pass
    assert read_folder((await fetching).path) == {"model.safetensors": data}


async def test_a_new_relay_fetches_the_newest_versions_and_removes_the_oldest(
    origin: Origin, stack: AsyncExitStack, tmp_path: Path
) -> None:
    for version in (1, 2, 3, 4):
        await origin.publish_folder(version, write_folder(tmp_path / str(version), {"a": b"%d" % version}))
    relay = await stack.enter_async_context(relay_of(tmp_path / "relay", origin.url, keep=2))
    await eventually(lambda: complete(relay, 4) and complete(relay, 3))
    assert [each.version for each in relay.versions.listing().versions] == [4, 3]
    await origin.publish_folder(5, write_folder(tmp_path / "5", {"a": b"5"}))
    await eventually(lambda: complete(relay, 5) and relay.versions.get(3) is None)
    assert sorted(path.name for path in (tmp_path / "relay").iterdir()) == ["4.1", "5.1"]


async def test_a_relay_on_a_small_disk_removes_the_oldest_and_does_not_fetch_them_again(
    origin: Origin, stack: AsyncExitStack, tmp_path: Path
) -> None:
    for version in (1, 2, 3, 4):
        await origin.publish_folder(version, write_folder(tmp_path / str(version), {"a": bytes(1000)}))
    store, rule = tmp_path / "relay", KeepRule(most=5, budget=2500)
    relay = await stack.enter_async_context(relay_of(store, origin.url, keep=rule))
    # Waits until the relay has removed versions 1 and 2. A transfer of version 1 that still runs would count below.
    await eventually(lambda: all(complete(relay, version) for version in (3, 4)) and len(list(relay.versions)) == 2)
    received = total(relay.metrics.received)
    await origin.publish_folder(5, write_folder(tmp_path / "5", {"a": bytes(1000)}))
    await eventually(lambda: complete(relay, 5) and {path.name for path in store.iterdir()} == {"4.1", "5.1"})
    assert total(relay.metrics.received) - received <= 1000


async def test_a_relay_keeps_versions_needed_by_leases_or_open_work_and_frees_them_afterwards(
    origin: Origin, stack: AsyncExitStack, tmp_path: Path
) -> None:
    store, rule = tmp_path / "relay", KeepRule(most=2, budget=1500)
    relay = await stack.enter_async_context(relay_of(store, origin.url, keep=rule, follows_needs=True))

    def holds(*versions: int) -> Callable[[], bool]:
        return lambda: relay.held() == [*versions] and all(complete(relay, each) for each in versions)

    for version in (1, 2, 3, 4, 5):
        await origin.publish_folder(version, write_folder(tmp_path / str(version), {"a": bytes(1000)}))
        await eventually(partial(complete, relay, version))
    assert relay.held() == [5, 4, 3, 2, 1]  # the needs are unknown, so the relay removes no version
    now, hour = time.time(), timedelta(hours=1)
    for version, came in enumerate((9000, 9000, 9000, 4000, 3000), start=1):
        os.utime(store / f"{version}.1", (now - came, now - came))
    relay.need(Needs(at=now, leases=hour, work=frozenset({1})))
    await eventually(holds(5, 4, 3, 1))  # open work needs 1, and leases for 3 may last until an hour after 5 arrived
    assert over_budget(relay) == 2500
    relay.need(None)
    await origin.publish_folder(6, write_folder(tmp_path / "6", {"a": bytes(1000)}))
    await eventually(holds(6, 5, 4, 3, 1))  # the needs are unknown again: no version is removed, new ones arrive
    relay.need(Needs(at=now + 2 * 3600, leases=hour))
    await eventually(holds(6, 5))
    # The relay deletes a removed version's folder after it has removed the version from its index.
    await eventually(lambda: sorted(path.name for path in store.iterdir()) == ["5.1", "6.1"])


async def test_after_a_restart_no_valid_block_is_fetched_again(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    files = content(3)
    await origin.publish_folder(1, write_folder(tmp_path / "source", files))
    async with relay_of(tmp_path / "relay", origin.url) as relay:
        await eventually(lambda: complete(relay, 1))
    broken = tmp_path / "relay" / "1.1" / "files" / "model.safetensors"
    with broken.open("r+b") as file:
        file.seek(2 * BLOCK + 5)
        file.write(b"flipped")
    (tmp_path / "relay" / "1.1" / "files" / "tokenizer" / "config.json").unlink()
    async with relay_of(tmp_path / "relay", origin.url) as relay, client_of(relay.url) as client:
        fetched = await client.fetch(1, tmp_path / "to")
        assert read_folder(fetched.path) == files
        assert total(relay.metrics.received) == BLOCK + len(files["tokenizer/config.json"])


async def test_a_newer_attempt_reuses_equal_blocks(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    relay = await stack.enter_async_context(relay_of(tmp_path / "relay", origin.url))
    client = await stack.enter_async_context(client_of(relay.url))
    files = content(4)
    publication = origin.begin(1, folder=write_folder(tmp_path / "source", files))
    await publication.advance("model.safetensors")
    await eventually(lambda: (held := relay.versions.get(1)) is not None and held.present_bytes == 5 * BLOCK)
    before = total(relay.metrics.received)
    await origin.publish_folder(1, tmp_path / "source")
    fetched = await client.fetch(1, tmp_path / "to")
    assert fetched.attempt == 2
    assert read_folder(fetched.path) == files
    after = total(relay.metrics.received)
    assert after - before == sum(map(len, files.values())) - 5 * BLOCK


async def test_a_relay_without_any_upstream_is_not_ready(stack: AsyncExitStack, tmp_path: Path) -> None:
    relay = await stack.enter_async_context(relay_of(tmp_path / "relay", "http://127.0.0.1:9"))
    assert await status_of(f"{relay.url}/readyz") == 503
    assert await status_of(f"{relay.url}/healthz") == 200
