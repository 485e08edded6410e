"""A version that is sent as deltas has the same files and digest as one that is sent whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from protocol.checkpoints import folder_files, version_digest
from shardcast.client import Client
from shardcast.delta.segments import HEADER
from shardcast.delta.selection import stands_alone
from shardcast.download.download import Download, Fetched
from shardcast.errors import VersionDropped, VersionGone
from shardcast.folder_watcher import FolderWatcher
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.records import Whole
from shardcast.origin import Origin
from shardcast.publish.publication import Published
from shardcast.relay import Relay
from tests.kit.manifests import PUBLISHER
from tests.kit.shardcast import QUICK, RUN_NAME, read_folder, write_folder
from tests.shardcast.delta.test_codec import safetensors

Clients = Callable[..., Client]

VALUES = 700_000
"""Number of bf16 values in the model; they fill several blocks."""


class Trainer:
    """Makes versions of a model that differ little, and publishes them.

    Args:
        origin: The origin that publishes the versions.
        folder: Folder for the versions, each in a sub-folder.
    """

    def __init__(self, origin: Origin, folder: Path) -> None:
        self.origin = origin
        self.contents: dict[int, dict[str, bytes]] = {}
        self._folder = folder
        self._draw = np.random.default_rng(7)
        self._weights = self._draw.integers(0, 2**16, VALUES, dtype=np.uint16)

    async def step(self, version: int, *, base: int | None = None, full: bool = True, share: float = 0.01) -> Published:
        """Makes and publishes the next version, with this share of values changed."""
        return await self.origin.publish_folder(version, self.make(version, share=share), base=base, full=full)

    def make(self, version: int, *, share: float = 0.01) -> Path:
        """Makes the next version; returns its folder."""
        self._weights = self._weights + (self._draw.random(VALUES) < share).astype(np.uint16)
        self.contents[version] = {
            "model.safetensors": safetensors({"w": ("BF16", self._weights.tobytes())}, metadata=str(version)),
            "table.bin": self._draw.bytes(3000),  # new random bytes in each version, so that its delta is too large
            "tokenizer/vocabulary.json": b"[" + b"0," * 5000 + b"0]",
        }
        return write_folder(self._folder / str(version), self.contents[version])

    def check(self, fetched: Fetched) -> None:
        """Asserts that a fetched folder has the files and the digest of its version."""
        assert read_folder(fetched.path) == self.contents[fetched.version]
        assert fetched.digest == version_digest(folder_files(fetched.path))
        assert fetched.size == sum(map(len, self.contents[fetched.version].values()))

    def whole(self, version: int) -> int:
        return sum(map(len, self.contents[version].values()))


@pytest.fixture
def trainer(origin: Origin, tmp_path: Path) -> Trainer:
    return Trainer(origin, tmp_path / "trained")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def received(client: Client) -> float:
    """Returns the number of bytes of all blocks that a client has received."""
    return sum(
        sample.value
        for metric in client.metrics.received.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    )


async def test_a_client_with_the_base_fetches_only_the_delta_and_gets_the_same_files(
    trainer: Trainer, client_of: Clients, tmp_path: Path
) -> None:
    await trainer.step(1)
    async with client_of(trainer.origin.url) as client:
        await client.fetch(1, tmp_path / "to")
        published = await trainer.step(2, base=1)
        fetched = await client.fetch(2, tmp_path / "to")
    async with client_of(trainer.origin.url) as newcomer:
        whole = await newcomer.fetch(2, tmp_path / "new")
    trainer.check(fetched)
    trainer.check(whole)
    assert published.digest == fetched.digest == whole.digest
    assert fetched.received < 0.02 * fetched.size
    assert whole.received == whole.size
    assert names(tmp_path / "to") == ["1", "2"]
    assert names(tmp_path / "new") == ["2"]
    assert names(tmp_path / "to" / "2") == [".manifest", "model.safetensors", "table.bin", "tokenizer"]


async def test_a_new_client_fetches_the_base_first_if_a_version_exists_only_as_deltas(
    trainer: Trainer, client_of: Clients, tmp_path: Path
) -> None:
    await trainer.step(1)
    await trainer.step(2, base=1, full=False)
    await trainer.step(3, base=2, full=False)
    async with client_of(trainer.origin.url) as client:
        fetched = await client.fetch(3, tmp_path / "to")
        trainer.check(fetched)
        assert received(client) < 1.1 * trainer.whole(3)
    assert names(tmp_path / "to") == ["1", "2", "3"]


async def test_a_chain_of_deltas_is_applied_from_the_local_version(
    trainer: Trainer, client_of: Clients, tmp_path: Path
) -> None:
    await trainer.step(1)
    async with client_of(trainer.origin.url) as client:
        await client.fetch(1, tmp_path / "to")
        for version in (2, 3, 4):
            await trainer.step(version, base=version - 1)
        before = received(client)
        trainer.check(await client.fetch(4, tmp_path / "to"))
        assert received(client) - before < 0.06 * trainer.whole(4)


async def test_a_delta_chain_larger_than_the_whole_version_is_not_used(
    trainer: Trainer, client_of: Clients, tmp_path: Path
) -> None:
    await trainer.step(1)
    async with client_of(trainer.origin.url) as client:
        await client.fetch(1, tmp_path / "to")
        for version in range(2, 12):
            await trainer.step(version, base=version - 1, share=0.5)  # each delta has an eighth of the file's size
        fetched = await client.fetch(11, tmp_path / "to")
    trainer.check(fetched)
    assert fetched.received == fetched.size
    assert names(tmp_path / "to") == ["1", "11"]


async def test_a_file_with_too_large_a_delta_is_published_whole(
    trainer: Trainer, client_of: Clients, tmp_path: Path
) -> None:
    await trainer.step(1)
    await trainer.step(2, base=1, full=False)
    held = trainer.origin.versions.get(2)
    assert held is not None
    assert {file.path: file.kind for file in held.manifest.files} == {
        "model.safetensors": "delta",
        "tokenizer/vocabulary.json": "delta",
        "table.bin": "full",
    }


@pytest.mark.parametrize("full", [True, False])
async def test_a_corrupt_local_base_costs_only_extra_bytes(
    trainer: Trainer, client_of: Clients, tmp_path: Path, full: bool
) -> None:
    await trainer.step(1)
    async with client_of(trainer.origin.url) as client:
        base = await client.fetch(1, tmp_path / "to")
        with (base.path / "model.safetensors").open("r+b") as file:
            file.seek(500_000)
            file.write(b"rot")
        await trainer.step(2, base=1, full=full)
        trainer.check(await client.fetch(2, tmp_path / "to"))


async def test_a_base_that_no_relay_has_is_reported(stack: AsyncExitStack, client_of: Clients, tmp_path: Path) -> None:
    origin = await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER))
    trainer = Trainer(origin, tmp_path / "trained")
    await trainer.step(1)
    await trainer.step(2, base=1, full=False)
    base = origin.versions.get(1)
    assert base is not None
    origin.withdraw(base)
    async with client_of(origin.url, timeouts=replace(QUICK, progress=timedelta(seconds=0.5))) as client:
        with pytest.raises(VersionGone, match=r"version 1\.1, the base of version 2\.1"):
            await client.fetch(2, tmp_path / "to")
    with pytest.raises(VersionGone, match="can't be a base"):
        await trainer.step(3, base=1)


async def test_bases_are_kept_until_a_whole_version_replaces_them(stack: AsyncExitStack, tmp_path: Path) -> None:
    origin = await stack.enter_async_context(Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER, keep=1))
    trainer = Trainer(origin, tmp_path / "trained")

    def held() -> list[int]:
        return [each.version for each in origin.versions.listing().versions]

    await trainer.step(1)
    await trainer.step(2, base=1, full=False)
    await trainer.step(3, base=2, full=False)
    assert held() == [3, 2, 1]
    await trainer.step(4, base=3)
    assert held() == [4]


async def test_a_delta_that_does_not_produce_the_signed_content_drops_the_version(
    trainer: Trainer, client_of: Clients, tmp_path: Path
) -> None:
    published = await trainer.step(1)
    del published
    old = trainer.contents[1]["model.safetensors"]
    base = trainer.origin._base(1)
    publication = trainer.origin.begin(2, folder=tmp_path / "none", base=base)
    delta = trainer.origin.delta_folder(publication.local.manifest.key) / "model.safetensors"
    delta.parent.mkdir(parents=True)
    delta.write_bytes(HEADER.pack(b"MUSTDLT1", len(old), len(old)) + b"no segments of any kind")
    whole = Whole(size=len(old), sha256="ab" * 32)
    await publication.advance("model.safetensors", kind="delta", whole=whole, ended=True)
    await trainer.origin.finish(publication)
    async with client_of(trainer.origin.url) as client:
        await client.fetch(1, tmp_path / "to")
        with pytest.raises(VersionDropped, match="can't be rebuilt from its base"):
            await client.fetch(2, tmp_path / "to")
    assert names(tmp_path / "to")[-1] == "1"


async def test_a_version_without_a_known_base_is_reported_as_gone(client_of: Clients, tmp_path: Path) -> None:
    async with client_of("http://127.0.0.1:9") as client:
        download = Download(key=VersionKey(2, 1), to=tmp_path / "to", context=client._context, catalog=client._catalog)
        with pytest.raises(VersionGone, match="no relay lists version"):
            await download._fetch_base()


PLANS: dict[str, list[tuple[int, int | None, bool]]] = {
    "one whole version and then deltas": [(1, None, True), (2, 1, False), (3, 2, False), (4, 3, False)],
    "a whole version that has deltas too": [(1, None, True), (2, 1, False), (3, 2, True), (4, 3, False)],
    "a whole version without deltas in between": [(1, None, True), (2, 1, False), (3, None, True), (4, 3, False)],
    "a base that is not the previous version": [(1, None, True), (2, 1, False), (3, 1, False), (5, 3, False)],
}


@pytest.mark.parametrize("plan", PLANS)
async def test_a_following_client_gets_the_right_files_of_each_version(
    trainer: Trainer, client_of: Clients, tmp_path: Path, plan: str
) -> None:
    async with client_of(trainer.origin.url) as client:
        following = client.follow(tmp_path / "to")
        for version, base, full in PLANS[plan]:
            await trainer.step(version, base=base, full=full)
            fetched = await anext(following)
            assert fetched.version == version
            trainer.check(fetched)
        await following.aclose()
    assert len(names(tmp_path / "to")) == 2


async def test_a_relay_that_starts_late_also_fetches_the_bases_of_its_versions(
    trainer: Trainer, client_of: Clients, stack: AsyncExitStack, tmp_path: Path
) -> None:
    await trainer.step(1)
    await trainer.step(2, base=1, full=False)
    await trainer.step(3, base=2, full=False)
    relay = await stack.enter_async_context(
        Relay(
            tmp_path / "relay",
            upstreams=[trainer.origin.url],
            run=RUN_NAME,
            signer=PUBLISHER.address,
            keep=1,
            timeouts=QUICK,
        )
    )
    async with client_of(relay.url) as client:
        fetched = await anext(client.follow(tmp_path / "to"))
        assert fetched.version == 3
        trainer.check(fetched)


async def test_a_watched_folder_is_published_as_deltas_between_whole_versions(
    origin: Origin, client_of: Clients, tmp_path: Path
) -> None:
    trainer = Trainer(origin, tmp_path / "trained")
    watcher = FolderWatcher(origin, keep=9, anchor_every=3)
    forms: dict[int, tuple[bool, int | None]] = {}
    async with client_of(origin.url) as client:
        following = client.follow(tmp_path / "to")
        for version in range(1, 6):
            made = trainer.make(version)
            (made / ".writing").touch()
            (made / "optimiser.tmp").write_bytes(b"not of the version")
            made.rename(origin.folder / str(version))
            await watcher.look()
            assert origin.versions.get(version) is None  # because it is still being written
            (origin.folder / str(version) / ".writing").unlink()
            await watcher.look()
            held = origin.versions.get(version)
            assert held is not None
            base = held.manifest.base
            forms[version] = (stands_alone(held.manifest), None if base is None else base.version)
            fetched = await anext(following)
            assert fetched.version == version
            trainer.check(fetched)
        await following.aclose()
    assert forms == {1: (True, None), 2: (False, 1), 3: (False, 2), 4: (True, 3), 5: (False, 4)}
