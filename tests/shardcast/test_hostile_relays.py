"""With any hostile relay a client gets the right bytes or a clear error, and never hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from protocol.errors import MusterError
from shardcast.client import Client
from shardcast.download.context import TransferLimits
from shardcast.download.peers import Peers
from shardcast.download.transfer import MANIFEST_READERS
from shardcast.manifest.manifest import VersionKey
from shardcast.origin import Origin
from tests.kit.shardcast import QUICK, complete, content, eventually, read_folder, relay_of, total, write_folder
from tests.shardcast import hostile
from tests.shardcast.hostile import Fault, HostileRelay

Clients = Callable[..., Client]

SHORT = replace(
    QUICK,
    answer=timedelta(milliseconds=600),
    silence=timedelta(milliseconds=800),
    stall=timedelta(milliseconds=400),
    hedge=timedelta(milliseconds=100),
    progress=timedelta(milliseconds=1500),
)
# Time-outs for tests that must succeed even on a busy machine.
SAFE = replace(
    SHORT,
    answer=timedelta(seconds=2),
    silence=timedelta(seconds=5),
    stall=timedelta(seconds=1.5),
    appear=timedelta(seconds=30),
    progress=timedelta(seconds=60),
)
LONG = replace(QUICK, answer=timedelta(seconds=30), stall=timedelta(seconds=30), progress=timedelta(seconds=60))
CONCURRENT = 6
"""Number of hostile relays that are tested at the same time."""
SINGLE_BLOCKS = TransferLimits(connections=2, span_blocks=1)
FILES = content(1)

CASES = [
    *(("/files/", fault) for fault in (*hostile.BLOCK_FAULTS, hostile.close_each)),
    *(("/manifest", fault) for fault in hostile.MANIFEST_FAULTS),
    *(("/versions", fault) for fault in hostile.LISTING_FAULTS),
    ("/probe", hostile.endless_bytes),
    ("/probe", hostile.silence),
]


def name(case: Fault | str) -> str:
    return case.strip("/") if isinstance(case, str) else str(getattr(case, "__name__", ""))


def prefer(peers: Peers, url: str) -> None:
    """Makes the client choose this peer for nearly all requests, until the peer fails."""
    peers[url].bandwidth, peers[url].measured = 1e15, True


@pytest.mark.parametrize(("where", "fault"), CASES, ids=name)
async def test_with_one_honest_relay_the_right_bytes_arrive(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path, where: str, fault: Fault
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, where, fault))
    client = client_of(bad.url, origin.url, timeouts=SAFE, requests=SINGLE_BLOCKS)
    prefer(client.peers, bad.url)
    await stack.enter_async_context(client)
    await eventually(lambda: bad.faults > 0 or where in {"/files/", "/manifest"})
    fetched = await client.fetch(1, tmp_path / "to")
    assert read_folder(fetched.path) == FILES
    assert bad.trapped == 0
    if where == "/files/":
        assert bad.faults > 0


async def test_a_hostile_relay_alone_gives_the_right_bytes_or_a_clear_error(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    turns = asyncio.Semaphore(CONCURRENT)

    async def try_one(number: int, where: str, fault: Fault) -> str:
        to = tmp_path / f"to{number}"
        async with (
            turns,
            HostileRelay(origin.url, where, fault) as bad,
            client_of(bad.url, timeouts=SHORT, requests=SINGLE_BLOCKS) as client,
        ):
            code = "whole"
            try:
                await client.fetch(1, to)
            except MusterError as error:
                code = error.code
        assert (to / "1").exists() == (code == "whole")
        assert code != "whole" or read_folder(to / "1") == FILES
        return code

    async with asyncio.timeout(240):
        ends = await asyncio.gather(*(try_one(number, *case) for number, case in enumerate(CASES)))
    named = {f"{name(where)} {name(fault)}": end for (where, fault), end in zip(CASES, ends, strict=True)}
    for case, end in named.items():
        assert end in {"whole", "no-progress", "version-gone"}, (case, end)
    for never in (
        "files flip",
        "files silence",
        "files error_page",
        "files redirect",
        "files other_range",
        "files bytes_of_another_range",
        "files compress",
        "manifest manifest_of_another_publisher",
        "manifest flip",
    ):
        assert named[never] != "whole"


async def test_a_relay_that_closes_each_connection_still_delivers_everything(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/files/", hostile.close_each))
    async with client_of(bad.url, timeouts=LONG, requests=SINGLE_BLOCKS) as client:
        assert read_folder((await client.fetch(1, tmp_path / "to")).path) == FILES
    assert bad.faults >= 5


async def test_a_relay_that_sent_a_bad_block_is_abandoned(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/files/", hostile.flip))
    relay = relay_of(tmp_path / "relay", bad.url, origin.url, requests=SINGLE_BLOCKS)
    prefer(relay.peers, bad.url)
    async with relay:
        await eventually(lambda: complete(relay, 1))
        assert 1 <= bad.faults <= SINGLE_BLOCKS.connections
        assert relay.peers[bad.url].invalid_data >= 1
        assert relay.peers.draw(asyncio.get_running_loop().time()) == origin.url
        async with client_of(relay.url) as client:
            assert read_folder((await client.fetch(1, tmp_path / "to")).path) == FILES


async def test_a_relay_passes_on_only_verified_blocks(origin: Origin, stack: AsyncExitStack, tmp_path: Path) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/files/1", hostile.flip))
    relay = await stack.enter_async_context(
        relay_of(tmp_path / "relay", bad.url, timeouts=SHORT, requests=SINGLE_BLOCKS)
    )
    await eventually(lambda: bad.faults >= 2)
    local = relay.versions.get(1)
    assert local is not None
    assert local.count_present(1, 0, 10) == 0
    assert not (tmp_path / "relay" / "1.1" / "files" / "model.safetensors").exists()


async def test_a_relay_that_lists_only_an_old_version_does_not_hide_the_newest_one(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    for version in (1, 2):
        await origin.publish_folder(version, write_folder(tmp_path / str(version), content(version)))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/versions", hostile.oldest_version_only))
    async with client_of(bad.url, origin.url) as client:
        assert await client.latest() == VersionKey(2, 1)


async def test_a_client_with_one_honest_relay_receives_each_block_once(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    async with client_of(origin.url) as client:
        fetched = await client.fetch(1, tmp_path / "to")
        assert total(client.metrics.received) == fetched.size


async def test_a_listed_version_that_was_never_published_does_not_block_a_client(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/versions", hostile.unpublished_version))
    client = await stack.enter_async_context(client_of(bad.url, origin.url, timeouts=SAFE))
    await eventually(lambda: bad.faults > 0 and len(client.peers.urls) == 2)
    async with asyncio.timeout(120):
        assert await client.latest() == VersionKey(1, 1)
        following = client.follow(tmp_path / "to")
        assert (await anext(following)).version == 1
        await origin.publish_folder(2, tmp_path / "source")
        assert (await anext(following)).version == 2


@pytest.mark.parametrize("fault", [hostile.keep_alives_only, hostile.slow_lines], ids=name)
async def test_a_client_reads_a_manifest_from_a_third_relay_if_two_relays_withhold_it(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path, fault: Fault
) -> None:
    files = {f"part-{number}": b"%d" % number for number in range(50)}  # their manifest has more than a hundred lines
    await origin.publish_folder(1, write_folder(tmp_path / "source", files))
    bad = [
        await stack.enter_async_context(HostileRelay(origin.url, "/manifest", fault)) for _ in range(MANIFEST_READERS)
    ]
    client = client_of(*(each.url for each in bad), origin.url, timeouts=SAFE)
    for each in bad:
        prefer(client.peers, each.url)
    await stack.enter_async_context(client)
    async with asyncio.timeout(120):
        assert read_folder((await client.fetch(1, tmp_path / "to")).path) == files
