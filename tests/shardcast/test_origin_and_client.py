"""A client gets the published files directly from an origin, during and after their writing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import InvalidInput
from shardcast.client import Client
from shardcast.errors import VersionGone
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from tests.kit.manifests import PUBLISHER, STRANGER
from tests.kit.shardcast import RUN_NAME, content, read_folder, write_folder

Clients = Callable[..., Client]


async def test_a_client_downloads_a_published_folder_completely(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    files = content(1)
    published = await origin.publish_folder(1, write_folder(tmp_path / "source", files))
    async with client_of(origin.url) as client:
        assert await client.latest() == VersionKey(1, 1)
        fetched = await client.fetch(1, tmp_path / "to")
    assert fetched.path == tmp_path / "to" / "1"
    assert read_folder(fetched.path) == files
    assert fetched.digest == published.digest == version_digest(folder_files(fetched.path))
    assert fetched.received == fetched.size == sum(map(len, files.values()))
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["1"]


async def test_a_client_receives_blocks_before_the_trainer_has_written_the_next(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    data = content(2)["model.safetensors"]
    heard: asyncio.Queue[int] = asyncio.Queue()
    async with client_of(origin.url) as client, origin.publish(version=4) as writing:
        await writing.write("model.safetensors", data[:BLOCK], expected=len(data))
        fetching = asyncio.create_task(
            client.fetch(4, tmp_path, on_progress=lambda progress: heard.put_nowait(progress.done))
        )
        for at in range(BLOCK, len(data), BLOCK):
            while await heard.get() < at:
                assert not fetching.done()
            await writing.write("model.safetensors", data[at : at + BLOCK])
        assert not (tmp_path / "4").exists()
        await writing.end("model.safetensors")
    fetched = await fetching
    assert writing.published is not None
    assert writing.published.digest == fetched.digest
    assert read_folder(fetched.path) == {"model.safetensors": data}


async def test_a_failed_publication_is_reported_to_the_writer(origin: Origin) -> None:
    async def write_after_truncation() -> None:
        async with origin.publish(version=4) as writing:
            await writing.write("model.safetensors", bytes(2 * BLOCK))
            await writing.catch_up()
            (origin.folder / ".shardcast" / "files" / "4" / "model.safetensors").write_bytes(b"")
            await writing.write("model.safetensors", b"more")
            await writing.write("other", b"and more")

    with pytest.raises(InvalidInput, match="became shorter"):
        await write_after_truncation()
    assert origin.newest is None


async def test_a_newer_attempt_replaces_one_that_was_never_sealed(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    first, second = content(3), content(4)
    async with client_of(origin.url) as client:
        with suppress(ZeroDivisionError):
            async with origin.publish(version=1) as writing:
                await writing.write("model.safetensors", first["model.safetensors"])
                fetching = asyncio.create_task(client.fetch(1, tmp_path / "to"))
                await writing.write("model.safetensors", b"the trainer dies here")
                raise ZeroDivisionError
        await origin.publish_folder(1, write_folder(tmp_path / "source", second))
        fetched = await fetching
    assert fetched.attempt == 2
    assert read_folder(fetched.path) == second


async def test_a_client_follows_each_newest_version_and_keeps_two(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    async with client_of(origin.url) as client:
        following = client.follow(tmp_path / "to", keep=2)
        for version in (1, 2, 5):
            files = content(version)
            await origin.publish_folder(version, write_folder(tmp_path / f"source{version}", files))
            fetched = await anext(following)
            assert (fetched.version, read_folder(fetched.path)) == (version, files)
        await following.aclose()
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["2", "5"]


async def test_an_origin_keeps_the_last_versions_and_reports_older_ones_as_gone(
    stack: AsyncExitStack, client_of: Clients, tmp_path: Path
) -> None:
    origin = await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER, keep=2))
    for version in (1, 2, 3):
        source = write_folder(tmp_path / str(version), {"a": b"%d" % version})
        await origin.publish_folder(version, source)
    assert [each.version for each in origin.versions.listing().versions] == [3, 2]
    assert (tmp_path / "1" / "a").exists()  # the origin never deletes a trainer's files
    async with client_of(origin.url) as client:
        with pytest.raises(VersionGone, match="version 1"):
            await client.fetch(1, tmp_path / "to")


async def test_an_origin_resumes_with_its_complete_versions_after_a_restart(client_of: Clients, tmp_path: Path) -> None:
    files = content(6)
    async with Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER) as origin:
        await origin.publish_folder(1, write_folder(tmp_path / "one", files))
        published = await origin.publish_folder(2, write_folder(tmp_path / "two", content(7)))
        origin.begin(3, folder=tmp_path / "three")
    (tmp_path / "two" / "model.safetensors").write_bytes(b"changed behind the origin's back")
    async with Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER) as origin, client_of(origin.url) as client:
        fetched = await client.fetch(1, tmp_path / "to")
        assert read_folder(fetched.path) == files
        with pytest.raises(VersionGone):
            await client.fetch(2, tmp_path / "to")
        again = await origin.publish_folder(2, write_folder(tmp_path / "two", content(7)))
        assert (again.digest, again.attempt) == (published.digest, 2)


async def test_with_a_state_folder_an_origin_only_reads_the_watched_folder(client_of: Clients, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    files = content(6)
    version = write_folder(watched / "1", files)
    for _ in ("first start", "restart"):
        async with Origin(watched, run=RUN_NAME, key=PUBLISHER, state=tmp_path / "state") as origin:
            if origin.newest is None:
                await origin.publish_folder(1, version)
            async with client_of(origin.url) as client:
                assert read_folder((await client.fetch(1, tmp_path / "to")).path) == files
    assert [path.name for path in watched.iterdir()] == ["1"]


async def test_a_state_folder_must_take_over_earlier_attempt_counts(tmp_path: Path) -> None:
    watched, state = tmp_path / "watched", tmp_path / "state"
    async with Origin(watched, run=RUN_NAME, key=PUBLISHER) as origin:
        await origin.publish_folder(1, write_folder(watched / "1", content(6)))
    with pytest.raises(InvalidInput, match="holds this origin's state") as caught:
        await Origin(watched, run=RUN_NAME, key=PUBLISHER, state=state).__aenter__()
    assert str(state) in caught.value.hint
    (watched / ".shardcast").rename(state)
    async with Origin(watched, run=RUN_NAME, key=PUBLISHER, state=state) as origin:
        assert origin.newest is not None


async def test_versions_published_by_another_key_are_ignored(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", {"a": b"a"}))
    async with client_of(origin.url, signer=STRANGER.address) as client:
        with pytest.raises(Exception, match="another run"):
            await client.fetch(1, tmp_path / "to")


@pytest.mark.parametrize("name", [".hidden only", "a b", "-dash"])
async def test_a_folder_that_cannot_be_a_version_is_refused(origin: Origin, tmp_path: Path, name: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / name).write_text("x")
    with pytest.raises(InvalidInput):
        await origin.publish_folder(1, tmp_path / "source")
    assert not origin.versions.listing().versions


async def test_a_link_out_of_the_folder_is_not_published(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInput, match="plain file"):
        await origin.publish_folder(1, tmp_path / "source")
