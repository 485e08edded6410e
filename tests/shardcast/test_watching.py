"""The origin publishes checkpoints in a watched folder, even while they are written."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from shardcast.client import Client
from shardcast.folder_watcher import FolderWatcher
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from tests.kit.shardcast import content, eventually, read_folder, write_folder

Clients = Callable[..., Client]


@pytest.fixture
async def watched(origin: Origin) -> AsyncIterator[Origin]:
    """Runs an origin that watches a folder."""
    watching = asyncio.create_task(FolderWatcher(origin, keep=3).run())
    yield origin
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


def sealed(origin: Origin, version: int, attempt: int = 1) -> bool:
    held = origin.versions.get(version)
    return held is not None and held.manifest.sealed and held.manifest.key == VersionKey(version, attempt)


async def test_a_complete_folder_that_is_moved_into_the_watched_folder_is_published(
    watched: Origin, client_of: Clients, tmp_path: Path
) -> None:
    files = content(1)
    write_folder(tmp_path / "made", files).rename(watched.folder / "checkpoint-7")
    await eventually(lambda: sealed(watched, 7))
    async with client_of(watched.url) as client:
        assert read_folder((await client.fetch(7, tmp_path / "to")).path) == files


async def test_a_folder_still_being_written_is_published_as_it_grows(watched: Origin) -> None:
    folder = watched.folder / "1"
    folder.mkdir()
    (folder / ".writing").touch()
    await eventually(lambda: watched.versions.get(1) is not None)
    with (folder / "model.safetensors").open("wb") as file:
        for blocks in (1, 2, 3):
            file.write(b"x" * BLOCK)
            file.flush()
            await eventually(lambda blocks=blocks: held_bytes(watched, 1) == blocks * BLOCK)  # type: ignore[misc]
        file.write(b"the rest")
    (folder / "optimiser.tmp").write_bytes(b"not of the version")
    assert not sealed(watched, 1)
    (folder / ".writing").unlink()
    await eventually(lambda: sealed(watched, 1))
    local = watched.versions.get(1)
    assert local is not None
    assert [(file.path, file.size) for file in local.manifest.content()] == [("model.safetensors", 3 * BLOCK + 8)]


async def test_a_folder_created_again_is_a_new_attempt(watched: Origin, tmp_path: Path) -> None:
    write_folder(tmp_path / "first", {"a": b"1"}).rename(watched.folder / "3")
    await eventually(lambda: sealed(watched, 3))
    write_folder(tmp_path / "second", {"a": b"2"})
    shutil.rmtree(watched.folder / "3")
    (tmp_path / "second").rename(watched.folder / "3")
    await eventually(lambda: sealed(watched, 3, attempt=2))


async def test_a_folder_that_vanishes_is_no_longer_served(watched: Origin, tmp_path: Path) -> None:
    write_folder(tmp_path / "made", {"a": b"1"}).rename(watched.folder / "3")
    await eventually(lambda: sealed(watched, 3))
    shutil.rmtree(watched.folder / "3")
    await eventually(lambda: watched.versions.get(3) is None)


async def test_an_invalid_folder_does_not_block_others(watched: Origin, tmp_path: Path) -> None:
    write_folder(tmp_path / "bad", {"a name with spaces": b"1"}).rename(watched.folder / "1")
    write_folder(tmp_path / "good", {"a": b"1"}).rename(watched.folder / "2")
    (watched.folder / "notes").mkdir()
    await eventually(lambda: sealed(watched, 2))
    assert [each.version for each in watched.versions.listing().versions] == [2]


def held_bytes(origin: Origin, version: int) -> int:
    held = origin.versions.get(version)
    return 0 if held is None else held.present_bytes
