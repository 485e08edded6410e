"""Versions of the publisher's former key are valid for a given time after a rotation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from protocol.errors import MusterError
from protocol.identity.keys import Key
from shardcast.client import Client
from shardcast.errors import BadManifest
from shardcast.folder_watcher import FolderWatcher
from shardcast.manifest.manifest import Manifest, VersionKey
from shardcast.manifest.signers import Signers
from shardcast.origin import Origin
from shardcast.publish.anchors import next_form
from shardcast.relay import Relay
from tests.kit.manifests import PUBLISHER, RUN, STRANGER, author, lines_of
from tests.kit.shardcast import RUN_NAME, content, eventually, read_folder, relay_of, write_folder

Clients = Callable[..., Client]
SUCCESSOR = Key(b"\x33" * 32)
NOW = datetime.now(UTC)
BOTH = Signers(publisher=SUCCESSOR.address, former=PUBLISHER.address, former_until=NOW + timedelta(hours=1))
OVER = Signers(publisher=SUCCESSOR.address, former=PUBLISHER.address, former_until=NOW - timedelta(seconds=1))
LINES = lines_of({"a": b"weights"})


def has(relay: Relay, *versions: int) -> Callable[[], bool]:
    """Returns a function that tells whether a relay holds these versions completely."""

    def look() -> bool:
        held = [relay.versions.get(version) for version in versions]
        return all(each is not None and each.manifest.sealed and not each.missing() for each in held)

    return look


async def publish(folder: Path, key: Key, *versions: int) -> None:
    """Publishes versions from an origin that signs with this key, and stops the origin."""
    async with Origin(folder, run=RUN_NAME, key=key) as origin:
        for version in versions:
            source = folder / str(version)
            await origin.publish_folder(version, write_folder(source, content(version, size=3000)))


def test_the_former_publisher_key_is_accepted_until_its_end() -> None:
    until = NOW + timedelta(hours=1)
    second = timedelta(seconds=1)
    assert BOTH.accepted_at(until - second) == (SUCCESSOR.address, PUBLISHER.address)
    assert BOTH.accepted_at(until) == BOTH.accepted_at(until + second) == (SUCCESSOR.address,)
    assert Signers(publisher=SUCCESSOR.address, former=PUBLISHER.address).accepted_at(NOW) == (SUCCESSOR.address,)


def test_the_signer_of_a_manifests_first_line_must_sign_all_lines() -> None:
    key = VersionKey(1, 1)
    manifest = Manifest(run=RUN, key=key, signer=SUCCESSOR.address, other_signers=[PUBLISHER.address])
    manifest.read(LINES[0])
    assert manifest.signer == PUBLISHER.address
    others = lines_of({"a": b"weights"}, writer=author(publisher=SUCCESSOR))
    with pytest.raises(BadManifest, match="was signed by"):
        manifest.read(others[1])
    for line in LINES[1:]:
        manifest.read(line)
    assert manifest.sealed
    strange = Manifest(run=RUN, key=key, signer=SUCCESSOR.address, other_signers=[PUBLISHER.address])
    with pytest.raises(BadManifest, match="not by the publisher"):
        strange.read(lines_of({"a": b"x"}, writer=author(publisher=STRANGER))[0])
    assert (strange.signer, strange.length) == (SUCCESSOR.address, 0)


async def test_relays_serve_versions_of_both_keys_during_the_grace_period(
    stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    """Each worker accepts one key: the one that announced the version of its step."""
    await publish(tmp_path / "origin", PUBLISHER, 1, 2)
    await publish(tmp_path / "origin", SUCCESSOR, 3)
    origin = await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=SUCCESSOR))
    relay = await stack.enter_async_context(relay_of(tmp_path / "relay", origin.url, signer=BOTH))
    below = await stack.enter_async_context(relay_of(tmp_path / "below", relay.url, signer=BOTH))
    await eventually(has(below, 1, 2, 3))
    listed = below.versions.listing()
    assert listed.publisher == SUCCESSOR.address
    assert {each.version: each.signer for each in listed.versions} == {
        1: PUBLISHER.address,
        2: PUBLISHER.address,
        3: None,
    }
    for key, version in ((PUBLISHER, 2), (SUCCESSOR, 3)):
        async with client_of(below.url, signer=key.address) as client:
            fetched = await client.fetch(version, tmp_path / f"of-{version}")
            assert read_folder(fetched.path) == content(version, size=3000)
    async with client_of(below.url, signer=BOTH) as client:
        assert [offer.version for offer in await client.offers()] == [3, 2, 1]


async def test_after_the_grace_period_versions_signed_by_the_former_key_are_refused(
    stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await publish(tmp_path / "origin", PUBLISHER, 1, 2)
    await publish(tmp_path / "origin", SUCCESSOR, 3)
    origin = await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=SUCCESSOR))
    relay = await stack.enter_async_context(relay_of(tmp_path / "relay", origin.url, signer=OVER))
    await eventually(has(relay, 3))
    assert [each.version for each in relay.versions.listing().versions] == [3]
    async with client_of(origin.url, signer=OVER) as client:
        with pytest.raises(MusterError, match="no relay has version 2"):
            await client.fetch(2, tmp_path / "to")
    async with client_of(relay.url) as client:
        with pytest.raises(MusterError, match="another run"):
            await client.fetch(2, tmp_path / "to")


async def test_a_running_relay_learns_of_the_rotation_and_keeps_its_versions(
    stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    await publish(tmp_path / "origin", PUBLISHER, 1)
    async with Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER) as origin:
        port = origin.server.port
        relay = await stack.enter_async_context(relay_of(tmp_path / "relay", origin.url))
        await eventually(has(relay, 1))
    await publish(tmp_path / "origin", SUCCESSOR, 2)
    await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=SUCCESSOR, port=port))
    relay.trust(BOTH)
    await eventually(has(relay, 1, 2))
    for key, version in ((PUBLISHER, 1), (SUCCESSOR, 2)):
        async with client_of(relay.url, signer=key.address) as client:
            await client.fetch(version, tmp_path / f"of-{version}")


async def test_a_relay_restarted_after_the_grace_period_removes_versions_of_the_former_key(tmp_path: Path) -> None:
    await publish(tmp_path / "origin", PUBLISHER, 1)
    async with AsyncExitStack() as before:
        origin = await before.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER))
        relay = await before.enter_async_context(relay_of(tmp_path / "relay", origin.url))
        await eventually(has(relay, 1))
    for signers, kept in ((BOTH, [1]), (OVER, [])):
        async with relay_of(tmp_path / "relay", "http://127.0.0.1:9", signer=signers) as relay:
            assert [each.version for each in relay.versions.listing().versions] == kept


async def test_a_folder_moved_away_and_back_is_signed_again(tmp_path: Path) -> None:
    """An operator does this if the former key signed a version, but the new key announced it."""
    write_folder(tmp_path / "7", content(7, size=3000))
    async with Origin(tmp_path, run=RUN_NAME, key=PUBLISHER) as origin:
        await FolderWatcher(origin).look()
        before = origin.newest
    async with Origin(tmp_path, run=RUN_NAME, key=SUCCESSOR) as origin:
        watcher = FolderWatcher(origin)
        await watcher.look()
        assert [each.manifest.signer for each in origin.versions] == [PUBLISHER.address]
        for one, other in (("7", ".7"), (".7", "7")):
            (tmp_path / one).rename(tmp_path / other)
            await watcher.look()
        assert [each.manifest.signer for each in origin.versions] == [SUCCESSOR.address]
        after = origin.newest
    assert before is not None
    assert after is not None
    assert (after.version, after.attempt, after.digest) == (7, before.attempt + 1, before.digest)


async def test_the_first_version_of_a_new_key_has_no_base_of_the_former_key(tmp_path: Path) -> None:
    await publish(tmp_path / "origin", PUBLISHER, 1)
    async with Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER) as origin:
        assert next_form(origin.versions, 2, anchor_every=5).base == 1
    async with Origin(tmp_path / "origin", run=RUN_NAME, key=SUCCESSOR) as origin:
        form = next_form(origin.versions, 2, anchor_every=5)
        assert (form.base, form.full) == (None, True)


@pytest.mark.parametrize(
    "thief", [pytest.param((98, 99), id="numbers-ahead-of-all-others"), pytest.param((2, 3), id="the-next-numbers")]
)
async def test_versions_of_an_expired_key_do_not_displace_those_of_its_successor(
    stack: AsyncExitStack, tmp_path: Path, thief: tuple[int, int]
) -> None:
    """The key may be rotated because it was stolen; the thief can sign versions of any number."""
    await publish(tmp_path / "stolen", PUBLISHER, *thief)
    async with Origin(tmp_path / "stolen", run=RUN_NAME, key=PUBLISHER) as stolen:
        port = stolen.server.port
        relay = await stack.enter_async_context(relay_of(tmp_path / "relay", stolen.url, keep=2))
        await eventually(has(relay, *thief))
    await publish(tmp_path / "origin", SUCCESSOR, 2)
    origin = await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=SUCCESSOR, port=port))
    relay.trust(Signers(publisher=SUCCESSOR.address))
    await eventually(lambda: _signed_by(relay, 2) == SUCCESSOR.address)
    await origin.publish_folder(3, write_folder(tmp_path / "3", content(3, size=3000)))
    await eventually(lambda: _signed_by(relay, 3) == SUCCESSOR.address)
    await eventually(has(relay, 2, 3))
    assert {each.manifest.signer for each in relay.versions} == {SUCCESSOR.address}


def _signed_by(relay: Relay, version: int) -> str | None:
    held = relay.versions.get(version)
    return None if held is None else held.manifest.signer
