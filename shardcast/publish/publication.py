"""One version on its way out: what is on disk becomes blocks, hashes, signed extensions, and at the end a seal."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from blake3 import blake3

from protocol.errors import Conflict, InvalidInput
from protocol.identifiers import Digest
from shardcast.local_version import LocalVersion
from shardcast.manifest.manifest import Manifest
from shardcast.manifest.records import BLOCK, FileEnd, FileEntry, Shard, Whole
from shardcast.manifest.writer import ManifestWriter

FIRST_BLOCKS = 4
BATCH_BLOCKS = 16
"""Blocks that a file's first extension announces at most, and each later one: few enough that the first leaves at once,
enough that signing, checking and asking for them costs little beside them."""

Kind = Literal["full", "delta"]


@dataclass(slots=True)
class _Progress:
    """Progress of one file."""

    index: int
    path: Path
    at: int = 0
    ended: bool = False
    sha256: hashlib._Hash = field(default_factory=hashlib.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version that is complete."""

    version: int
    attempt: int
    digest: Digest
    size: int
    """Bytes that travel."""


class Publication:
    """Publishes files that only ever grow, while they grow.

    Args:
        author: Signs the extensions.
        local: Where the version is given from.
        advanced: Told the bytes after each step.
    """

    def __init__(self, author: ManifestWriter, local: LocalVersion, *, advanced: Callable[[int], None]) -> None:
        self.local = local
        self._author = author
        self._advanced = advanced
        self._files: dict[tuple[str, Kind], _Progress] = {}
        self._buffer = memoryview(bytearray(BLOCK))
        self._lock = asyncio.Lock()

    @property
    def digest(self) -> Digest | None:
        """The version digest, once it is sealed."""
        return self._author.manifest.digest

    @property
    def paths(self) -> list[str]:
        """The files that are published so far, whole or in part."""
        return [path for path, _ in self._files]

    def open(self) -> None:
        """Announces the version before its first byte."""
        self._extend()

    async def advance(
        self,
        path: str,
        *,
        kind: Kind = "full",
        expected: int | None = None,
        whole: Whole | None = None,
        ended: bool = False,
    ) -> None:
        """Publishes what a file has grown by: its whole blocks, and with `ended` the rest.

        Args:
            path: Of the file, in the version.
            kind: Whether what is on disk is a delta.
            expected: Bytes it will have, if that is known at its first call.
            whole: What a delta makes; needed when it has ended.
            ended: Whether nothing will be added.

        Raises:
            InvalidInput: The file became shorter, or its name can't stand in a version.
        """
        async with self._lock:
            progress = self._files.get((path, kind)) or self._declare(path, kind, expected)
            if progress.ended:
                raise Conflict(f"{path} has ended already")
            grown = True
            while grown:
                size, hashes, grown = await asyncio.to_thread(self._hash_batch, progress, ended)
                shards = [Shard(file=progress.index, offset=progress.at, size=size, blocks=hashes)] if size else []
                progress.at += size
                progress.ended = ended and not grown
                end = [self._end(progress, whole)] if progress.ended else []
                if shards or end:
                    self._extend(shards=shards, ended=end)

    async def seal(self) -> Digest:
        """Completes the version; returns its digest.

        Raises:
            BadManifest: A file has not ended.
        """
        async with self._lock:
            line, spans = self._author.extend(seal=True)
            self.local.append(line, spans)
        return self._author.manifest.digest or self._unsealed()

    def _declare(self, path: str, kind: Kind, expected: int | None) -> _Progress:
        index = len(self._files)
        self._extend(files=[FileEntry(path=path, kind=kind, expected=expected)])
        self._files[path, kind] = _Progress(index, self.local.path(index))
        return self._files[path, kind]

    def _extend(
        self, *, files: Sequence[FileEntry] = (), shards: Sequence[Shard] = (), ended: Sequence[FileEnd] = ()
    ) -> None:
        line, spans = self._author.extend(files=files, shards=shards, ended=ended)
        self.local.append(line, spans)
        for span in spans:
            for block in range(span.first, span.first + span.count):
                self.local.set_present(span.file, block)
        self._advanced(sum(shard.size for shard in shards))

    def _end(self, progress: _Progress, whole: Whole | None) -> FileEnd:
        return FileEnd(file=progress.index, size=progress.at, sha256=progress.sha256.hexdigest(), whole=whole)

    def _hash_batch(self, progress: _Progress, ended: bool) -> tuple[int, str, bool]:
        """In a thread: reads the next blocks; returns their bytes and hashes, and whether there are more."""
        hashes: list[str] = []
        size = 0
        with progress.path.open("rb", buffering=0) as file:
            available = os.fstat(file.fileno()).st_size - progress.at
            if available < 0:
                raise InvalidInput(
                    f"{progress.path.name} became shorter while it was published",
                    hint="a version's files may only be added to; write it again as a new attempt",
                )
            usable = available if ended else available // BLOCK * BLOCK
            most = BATCH_BLOCKS if progress.at else FIRST_BLOCKS
            while size < min(usable, most * BLOCK):
                piece = self._buffer[: min(BLOCK, usable - size)]
                read = os.preadv(file.fileno(), [piece], progress.at + size)
                if read != len(piece):
                    raise InvalidInput(f"{progress.path.name} became shorter while it was published")
                hashes.append(blake3(piece).hexdigest())
                progress.sha256.update(piece)
                size += read
        return size, "".join(hashes), size < usable

    def _unsealed(self) -> Digest:
        raise Conflict(f"version {self._author.manifest.key} could not be sealed")


def published_of(manifest: Manifest) -> Published:
    """Returns the published form of a complete version.

    Raises:
        Conflict: It is not complete.
    """
    if manifest.digest is None:
        raise Conflict(f"version {manifest.key} is not complete")
    return Published(
        version=manifest.key.version, attempt=manifest.key.attempt, digest=manifest.digest, size=manifest.size
    )
