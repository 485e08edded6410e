"""Publication of one version, while its files are written.

A publication hashes blocks, announces them in signed extensions, and seals the manifest.
"""

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
from protocol.runtime.threads import run_in_thread
from shardcast.local_version import LocalVersion
from shardcast.manifest.manifest import Manifest
from shardcast.manifest.records import BLOCK, FileEnd, FileEntry, Shard, Whole
from shardcast.manifest.writer import ManifestWriter

FIRST_BLOCKS = 4
"""Maximum number of blocks in the first extension of a file; a small number, so that readers can begin soon."""
BATCH_BLOCKS = 16
"""Maximum number of blocks in each later extension. The number is larger than `FIRST_BLOCKS`, because each extension
costs the publisher a signature, and costs each reader a verification and a request."""

Kind = Literal["full", "delta"]


@dataclass(slots=True)
class _Progress:
    """State of one file's publication."""

    index: int
    """Index of the file in the manifest."""
    path: Path
    """Path of the file on this disk."""
    at: int = 0
    """Number of bytes published so far."""
    ended: bool = False
    """Whether the file's end was published."""
    sha256: hashlib._Hash = field(default_factory=hashlib.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Summary of a complete version."""

    version: int
    attempt: int
    digest: Digest
    """Version digest over the files."""
    size: int
    """Number of bytes published for the version, deltas included."""


class Publication:
    """Publishes the files of one version while they grow. Published bytes must not change.

    Args:
        writer: Writer of the version's manifest, which signs the extensions.
        local: The local version, from which the origin serves published blocks.
        advanced: Called after each extension with the number of bytes that it announces.
    """

    def __init__(self, writer: ManifestWriter, local: LocalVersion, *, advanced: Callable[[int], None]) -> None:
        self.local = local
        self._writer = writer
        self._advanced = advanced
        self._files: dict[tuple[str, Kind], _Progress] = {}
        self._buffer = memoryview(bytearray(BLOCK))
        self._lock = asyncio.Lock()

    @property
    def digest(self) -> Digest | None:
        """Returns the version digest; None before the seal."""
        return self._writer.manifest.digest

    @property
    def paths(self) -> list[str]:
        """Returns the paths of the files whose publication has begun."""
        return [path for path, _ in self._files]

    def open(self) -> None:
        """Publishes the first extension, which announces the version before its first byte."""
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
        """Publishes the blocks that were added to a file.

        With `ended`, the method also publishes the last block, which may be shorter. Otherwise it publishes full blocks
        only.

        Args:
            path: Path of the file in the version.
            kind: `delta` if the file on disk is a delta, `full` otherwise.
            expected: Final size of the file on disk in bytes, if known at the first call.
            whole: For a delta with `ended`: the file that the delta produces.
            ended: Whether the file is complete.

        Raises:
            InvalidInput: The file became shorter, or its name is not allowed in a version.
            Conflict: The end of the file was already published.
        """
        async with self._lock:
            progress = self._files.get((path, kind)) or self._declare(path, kind, expected)
            if progress.ended:
                raise Conflict(f"the end of {path} was already published, so the file can't grow")
            grown = True
            while grown:
                size, hashes, grown = await run_in_thread(self._hash_batch, progress, ended)
                shards = [Shard(file=progress.index, offset=progress.at, size=size, blocks=hashes)] if size else []
                progress.at += size
                progress.ended = ended and not grown
                end = [self._end(progress, whole)] if progress.ended else []
                if shards or end:
                    self._extend(shards=shards, ended=end)

    async def seal(self) -> Digest:
        """Seals the version, which completes it; returns the version digest.

        Raises:
            BadManifest: The end of a file was not published.
        """
        async with self._lock:
            line, spans = self._writer.extend(seal=True)
            self.local.append(line, spans)
        return self._writer.manifest.digest or self._unsealed()

    def _declare(self, path: str, kind: Kind, expected: int | None) -> _Progress:
        index = len(self._files)
        self._extend(files=[FileEntry(path=path, kind=kind, expected=expected)])
        self._files[path, kind] = _Progress(index, self.local.path(index))
        return self._files[path, kind]

    def _extend(
        self, *, files: Sequence[FileEntry] = (), shards: Sequence[Shard] = (), ended: Sequence[FileEnd] = ()
    ) -> None:
        line, spans = self._writer.extend(files=files, shards=shards, ended=ended)
        self.local.append(line, spans)
        for span in spans:
            for block in range(span.first, span.first + span.count):
                self.local.set_present(span.file, block)
        self._advanced(sum(shard.size for shard in shards))

    def _end(self, progress: _Progress, whole: Whole | None) -> FileEnd:
        return FileEnd(file=progress.index, size=progress.at, sha256=progress.sha256.hexdigest(), whole=whole)

    def _hash_batch(self, progress: _Progress, ended: bool) -> tuple[int, str, bool]:
        """Hashes the next blocks of a file; runs in a thread.

        Returns:
            Size of the blocks in bytes, their BLAKE3 hashes as concatenated hex digits, and whether more blocks follow.
        """
        hashes: list[str] = []
        size = 0
        with progress.path.open("rb", buffering=0) as file:
            available = os.fstat(file.fileno()).st_size - progress.at
            if available < 0:
                raise InvalidInput(
                    f"{progress.path.name} became shorter while it was published",
                    hint="files of a version may only grow: write the version again, as a new attempt",
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
        raise Conflict(f"version {self._writer.manifest.key} could not be sealed")


def published_of(manifest: Manifest) -> Published:
    """Returns a summary of a complete version.

    Raises:
        Conflict: The version is not complete.
    """
    if manifest.digest is None:
        raise Conflict(f"version {manifest.key} is not complete")
    return Published(
        version=manifest.key.version, attempt=manifest.key.attempt, digest=manifest.digest, size=manifest.size
    )
