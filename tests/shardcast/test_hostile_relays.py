"""Against any hostile relay a client ends with the right bytes or a clear error, and never hangs."""

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
from shardcast.download.context import RequestLimits
from shardcast.download.peers import Peers
from shardcast.download.transfer import MANIFEST_READERS
from shardcast.manifest.manifest import VersionKey
from shardcast.origin import Origin
from tests.kit.shardcast import QUICK, content, eventually, read_folder, total, write_folder
from tests.shardcast import hostile
from tests.shardcast.hostile import HostileRelay, Spoil
from tests.shardcast.test_relay import complete, relay_of

Clients = Callable[..., Client]

HASTY = replace(
    QUICK,
    answer=timedelta(milliseconds=600),
    silence=timedelta(milliseconds=800),
    stall=timedelta(milliseconds=400),
    hedge=timedelta(milliseconds=100),
    progress=timedelta(milliseconds=1500),
)
# Time-outs for tests that must succeed, however busy this machine is.
SURE = replace(
    HASTY,
    answer=timedelta(seconds=2),
    silence=timedelta(seconds=5),
    stall=timedelta(seconds=1.5),
    appear=timedelta(seconds=30),
    progress=timedelta(seconds=60),
)
PATIENT = replace(QUICK, answer=timedelta(seconds=30), stall=timedelta(seconds=30), progress=timedelta(seconds=60))
AT_ONCE = 6
ONE_BY_ONE = RequestLimits(connections=2, span_blocks=1)
FILES = content(1)

EVERYTHING = [
    *(("/files/", spoil) for spoil in (*hostile.SPOILT_BLOCKS, hostile.close_each)),
    *(("/manifest", spoil) for spoil in hostile.SPOILT_MANIFESTS),
    *(("/versions", spoil) for spoil in hostile.SPOILT_LISTINGS),
    ("/probe", hostile.endless),
    ("/probe", hostile.silence),
]


def name(case: Spoil | str) -> str:
    return case.strip("/") if isinstance(case, str) else str(getattr(case, "__name__", ""))


def prefer(peers: Peers, url: str) -> None:
    """Makes a peer the preferred choice until it fails."""
    peers[url].bandwidth, peers[url].measured = 1e15, True


@pytest.mark.parametrize(("where", "spoil"), EVERYTHING, ids=name)
async def test_with_one_honest_relay_the_right_bytes_arrive(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path, where: str, spoil: Spoil
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, where, spoil))
    client = client_of(bad.url, origin.url, timeouts=SURE, requests=ONE_BY_ONE)
    prefer(client.peers, bad.url)
    await stack.enter_async_context(client)
    await eventually(lambda: bad.spoilt > 0 or where in {"/files/", "/manifest"})
    fetched = await client.fetch(1, tmp_path / "to")
    assert read_folder(fetched.path) == FILES
    assert bad.trapped == 0
    if where == "/files/":
        assert bad.spoilt > 0


async def test_a_hostile_relay_alone_gives_the_right_bytes_or_a_clear_error(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    turns = asyncio.Semaphore(AT_ONCE)

    async def try_one(number: int, where: str, spoil: Spoil) -> str:
        to = tmp_path / f"to{number}"
        async with (
            turns,
            HostileRelay(origin.url, where, spoil) as bad,
            client_of(bad.url, timeouts=HASTY, requests=ONE_BY_ONE) as client,
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
        ends = await asyncio.gather(*(try_one(number, *case) for number, case in enumerate(EVERYTHING)))
    named = {f"{name(where)} {name(spoil)}": end for (where, spoil), end in zip(EVERYTHING, ends, strict=True)}
    for case, end in named.items():
        assert end in {"whole", "no-progress", "version-gone"}, (case, end)
    for never in (
        "files flip",
        "files silence",
        "files error_page",
        "files redirect",
        "files other_range",
        "files lying_range",
        "files compress",
        "manifest strangers_manifest",
        "manifest flip",
    ):
        assert named[never] != "whole"


async def test_a_relay_that_closes_each_connection_still_delivers_everything(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/files/", hostile.close_each))
    async with client_of(bad.url, timeouts=PATIENT, requests=ONE_BY_ONE) as client:
        assert read_folder((await client.fetch(1, tmp_path / "to")).path) == FILES
    assert bad.spoilt >= 5


async def test_a_relay_that_sent_a_bad_block_is_abandoned(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/files/", hostile.flip))
    relay = relay_of(tmp_path / "relay", bad.url, origin.url, requests=ONE_BY_ONE)
    prefer(relay.peers, bad.url)
    async with relay:
        await eventually(lambda: complete(relay, 1))
        assert 1 <= bad.spoilt <= ONE_BY_ONE.connections
        assert relay.peers[bad.url].invalid_data >= 1
        assert relay.peers.draw(asyncio.get_running_loop().time()) == origin.url
        async with client_of(relay.url) as client:
            assert read_folder((await client.fetch(1, tmp_path / "to")).path) == FILES


async def test_a_relay_passes_on_only_verified_blocks(origin: Origin, stack: AsyncExitStack, tmp_path: Path) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/files/1", hostile.flip))
    relay = await stack.enter_async_context(relay_of(tmp_path / "relay", bad.url, timeouts=HASTY, requests=ONE_BY_ONE))
    await eventually(lambda: bad.spoilt >= 2)
    local = relay.versions.get(1)
    assert local is not None
    assert local.count_present(1, 0, 10) == 0
    assert not (tmp_path / "relay" / "1.1" / "files" / "model.safetensors").exists()


async def test_an_older_version_offered_as_the_newest_is_not_accepted(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    for version in (1, 2):
        await origin.publish_folder(version, write_folder(tmp_path / str(version), content(version)))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/versions", hostile.from_the_past))
    async with client_of(bad.url, origin.url) as client:
        assert await client.latest() == VersionKey(2, 1)


async def test_a_client_with_one_honest_relay_receives_each_block_once(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    async with client_of(origin.url) as client:
        fetched = await client.fetch(1, tmp_path / "to")
        assert total(client.metrics.received) == fetched.size


async def test_an_announced_version_that_never_comes_does_not_block_a_client(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    bad = await stack.enter_async_context(HostileRelay(origin.url, "/versions", hostile.ghost))
    client = await stack.enter_async_context(client_of(bad.url, origin.url, timeouts=SURE))
    await eventually(lambda: bad.spoilt > 0 and len(client.peers.urls) == 2)
    async with asyncio.timeout(120):
        assert await client.latest() == VersionKey(1, 1)
        following = client.follow(tmp_path / "to")
        assert (await anext(following)).version == 1
        await origin.publish_folder(2, tmp_path / "source")
        assert (await anext(following)).version == 2


@pytest.mark.parametrize("spoil", [hostile.hush, hostile.dribble], ids=name)
async def test_two_relays_that_withhold_a_manifest_do_not_keep_a_client_from_a_third(
    origin: Origin, stack: AsyncExitStack, client_of: Clients, tmp_path: Path, spoil: Spoil
) -> None:
    files = {f"part-{number}": b"%d" % number for number in range(50)}  # more than a hundred lines of manifest
    await origin.publish_folder(1, write_folder(tmp_path / "source", files))
    bad = [
        await stack.enter_async_context(HostileRelay(origin.url, "/manifest", spoil)) for _ in range(MANIFEST_READERS)
    ]
    client = client_of(*(each.url for each in bad), origin.url, timeouts=SURE)
    for each in bad:
        prefer(client.peers, each.url)
    await stack.enter_async_context(client)
    async with asyncio.timeout(120):
        assert read_folder((await client.fetch(1, tmp_path / "to")).path) == files
