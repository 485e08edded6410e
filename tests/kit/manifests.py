"""Builds signed manifests."""

from __future__ import annotations

import hashlib

from blake3 import blake3

from protocol.identifiers import Digest, run_id
from protocol.identity.keys import Key
from shardcast.manifest.manifest import Manifest, VersionKey
from shardcast.manifest.records import BLOCK, FileEnd, FileEntry, Shard
from shardcast.manifest.writer import ManifestWriter

RUN: Digest = run_id("test")
PUBLISHER = Key(b"\x11" * 32)
STRANGER = Key(b"\x22" * 32)


def shard_of(file: int, offset: int, data: bytes) -> Shard:
    """The shard that announces `data` at `offset`."""
    hashes = "".join(blake3(data[at : at + BLOCK]).hexdigest() for at in range(0, len(data), BLOCK))
    return Shard(file=file, offset=offset, size=len(data), blocks=hashes)


def end_of(file: int, data: bytes) -> FileEnd:
    """The end of a file that holds `data`."""
    return FileEnd(file=file, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def author(version: int = 1, attempt: int = 1, publisher: Key = PUBLISHER) -> ManifestWriter:
    """An author of the test run."""
    return ManifestWriter(run=RUN, key=VersionKey(version, attempt), publisher=publisher)


def empty(version: int = 1, attempt: int = 1) -> Manifest:
    """A manifest of which nothing is known yet."""
    return Manifest(run=RUN, key=VersionKey(version, attempt), signer=PUBLISHER.address)


def lines_of(content: dict[str, bytes], *, writer: ManifestWriter | None = None, shard: int = 2 * BLOCK) -> list[bytes]:
    """The whole manifest of a version, in shards of a size, line by line."""
    writer = author() if writer is None else writer
    text, _ = writer.extend(files=[FileEntry(path=path) for path in content])
    for index, data in enumerate(content.values()):
        for at in range(0, len(data), shard):
            text += writer.extend(shards=[shard_of(index, at, data[at : at + shard])])[0]
        text += writer.extend(ended=[end_of(index, data)])[0]
    text += writer.extend(seal=True)[0]
    return text.splitlines(keepends=True)
