"""Publication of one version: files on disk become hashed blocks, signed extensions, and in the end a seal."""

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
BATCH_BLOCKS = 16
"""Most blocks of a file's first extension, and of each later one: few enough to announce the first blocks at once, many
enough to make the costs of signature, check and request small."""

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
    """A complete version."""

    version: int
    attempt: int
    digest: Digest
    size: int
    """Bytes published for it, deltas included."""


class Publication:
    """Publishes files of one version while they grow; a file is only ever appended to.

    Args:
        writer: Signs the extensions.
        local: The version that the origin serves.
        advanced: Called with the bytes of each extension.
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
        """Returns the paths of published files, complete or not."""
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
        """Publishes the new blocks of a file: the full ones, and with `ended` also the last, shorter one.

        Args:
            path: Path of the file in the version.
            kind: Whether the file on disk is a delta.
            expected: Its final size in bytes, if known at the first call.
            whole: The file that a delta produces; required with `ended`.
            ended: Whether the file is complete.

        Raises:
            InvalidInput: The file became shorter, or its name is not allowed in a version.
            Conflict: The file has ended already.
        """
        async with self._lock:
            progress = self._files.get((path, kind)) or self._declare(path, kind, expected)
            if progress.ended:
                raise Conflict(f"{path} has ended already")
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
        """Completes the version; returns its digest.

        Raises:
            BadManifest: A file has not ended.
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
        """Reads the next blocks, in a thread; returns their size, their hashes, and whether there are more."""
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
