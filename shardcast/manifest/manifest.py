"""Manifest of a version: a list of extensions, the last of which seals it.

The publisher signs each extension.

The module does no I/O. A manifest keeps 32 bytes in memory for each block of the version. The origin, relays and
clients use the same class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from protocol.checkpoints import MOST_FILES, VersionFile, check_path, version_digest
from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from shardcast.errors import BadManifest
from shardcast.manifest.records import (
    BLOCK,
    MOST_FILE_BYTES,
    MOST_VERSION_BYTES,
    DeltaBase,
    Extension,
    FileEnd,
    FileEntry,
    Shard,
    Whole,
    read_extension,
)


@dataclass(frozen=True, slots=True, order=True)
class VersionKey:
    """Number of a version, and of the attempt at publishing it; keys sort by age, newest last."""

    version: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.version}.{self.attempt}"


@dataclass(frozen=True, slots=True, order=True)
class BlockSpan:
    """Consecutive blocks of a file: number `first` up to and including `first + count - 1`."""

    file: int
    first: int
    count: int

    def parts(self, most: int) -> Iterator[BlockSpan]:
        """Splits the span into spans of at most `most` blocks."""
        for first in range(self.first, self.first + self.count, most):
            yield BlockSpan(self.file, first, min(most, self.first + self.count - first))

    def without(self, blocks: Iterable[int]) -> list[BlockSpan]:
        """Returns the span without these blocks, in as few spans as possible."""
        left: list[BlockSpan] = []
        start, end = self.first, self.first + self.count
        for block in [*sorted(block for block in blocks if start <= block < end), end]:
            if block > start:
                left.append(BlockSpan(self.file, start, block - start))
            start = block + 1
        return left


@dataclass(slots=True)
class FileProgress:
    """State of one file of a version, as far as the manifest announces it."""

    index: int
    """Position of the file among all files of the manifest."""
    path: str
    kind: Literal["full", "delta"]
    """`full` for a whole file, `delta` for the difference from a file of the base."""
    expected: int | None
    """Final size in bytes, if the publisher knew it at the start."""
    announced: int = 0
    """Number of bytes announced so far."""
    sha256: str | None = None
    """SHA-256 of all bytes of the file; None until the file has ended."""
    whole: Whole | None = None
    """For a delta that has ended: the file that it produces."""
    hashes: bytearray = field(default_factory=bytearray, repr=False)
    """BLAKE3 hashes of the announced blocks, 32 bytes each, concatenated."""

    @property
    def ended(self) -> bool:
        """Returns whether the manifest announces the file's end."""
        return self.sha256 is not None

    @property
    def blocks(self) -> int:
        """Returns the number of announced blocks."""
        return -(-self.announced // BLOCK)

    def hash_of(self, block: int) -> bytes:
        """Returns the BLAKE3 hash of an announced block."""
        return bytes(self.hashes[32 * block : 32 * block + 32])

    def size_of(self, block: int) -> int:
        """Returns the size of an announced block in bytes."""
        return min(BLOCK, self.announced - block * BLOCK)


class Manifest:
    """The manifest of one attempt at one version.

    Args:
        run: Id of the run.
        key: The version and the attempt at it.
        signer: Address of the publisher.
        other_signers: Addresses of further accepted signers. Any accepted signer may sign the first extension; the same
            signer must sign all later extensions.
    """

    def __init__(self, *, run: Digest, key: VersionKey, signer: Address, other_signers: Sequence[Address] = ()) -> None:
        self.run = run
        self.key = key
        self.signer = signer
        """Signer of the first extension; the publisher, as long as there is no extension."""
        self.other_signers = tuple(other_signers)
        self.head: Digest = ZERO_DIGEST
        """Hash of the newest extension; zeros if there is none."""
        self.length = 0
        """Number of extensions, which is also the sequence number of the next extension."""
        self.files: list[FileProgress] = []
        self.base: DeltaBase | None = None
        self.digest: Digest | None = None
        """Version digest; None until the manifest is sealed."""
        self.size = 0
        """Number of bytes announced so far, over all files."""
        self.names = _Names()

    @property
    def sealed(self) -> bool:
        """Returns whether the manifest is complete.

        No reader uses a version without a sealed manifest.
        """
        return self.digest is not None

    def read(self, line: bytes) -> list[BlockSpan]:
        """Verifies one untrusted line and adds its extension; returns the blocks that the extension announces.

        Raises:
            BadManifest: The line is not the publisher's next extension of this version. The manifest is unchanged.
        """
        signers = (self.signer,) if self.length else (self.signer, *self.other_signers)
        extension, hashed, signer = read_extension(line, signers=signers)
        spans = self.extend(extension, hashed)
        self.signer = signer
        return spans

    def extend(self, extension: Extension, hashed: Digest) -> list[BlockSpan]:
        """Adds an extension whose signature was verified.

        Returns the blocks that the extension announces, in order.

        Args:
            extension: The extension.
            hashed: Hash of the extension.

        Raises:
            BadManifest: The extension contradicts earlier ones. The manifest is unchanged.
        """
        self._check_place(extension)
        plan = _Plan(self)
        plan.apply(extension)
        plan.commit()
        self.files = plan.files
        self.names = plan.names
        self.size = plan.size
        if extension.opening is not None:
            self.base = extension.opening.base
        self.digest = extension.digest
        self.head = hashed
        self.length += 1
        return plan.spans

    def spans(self) -> Iterator[BlockSpan]:
        """Returns all announced blocks, one span per file."""
        return (BlockSpan(file.index, 0, file.blocks) for file in self.files if file.blocks)

    def content(self) -> list[VersionFile]:
        """Returns the files of the version, with deltas replaced by the files that they produce.

        Raises:
            BadManifest: A file has not ended, or a path has two different contents.
        """
        return content_of(self.files)

    def _check_place(self, extension: Extension) -> None:
        if extension.run != self.run:
            raise BadManifest(f"the extension belongs to run {extension.run}, not to {self.run}", code="wrong-run")
        if (extension.version, extension.attempt) != (self.key.version, self.key.attempt):
            raise BadManifest(
                f"the extension belongs to version {extension.version}.{extension.attempt}, not to {self.key}",
                code="wrong-version",
            )
        if self.sealed:
            raise BadManifest(f"version {self.key} is sealed, but its manifest has a further extension")
        if extension.sequence != self.length or extension.previous != self.head:
            raise BadManifest(
                f"extension {extension.sequence} of {self.key} does not follow: "
                f"the next one must be number {self.length}, after the extension with hash {self.head}"
            )
        if (extension.opening is not None) != (extension.sequence == 0):
            raise BadManifest("the first extension must have an opening record, and no other extension may have one")
        # Each kind of content has a limit per version. Because empty extensions are refused, the number of extensions
        # has a limit, too. So a publisher can't make readers store an endless manifest.
        content = extension.opening or extension.files or extension.shards or extension.ended or extension.digest
        if not content:
            raise BadManifest(f"extension {extension.sequence} of {self.key} is empty")


def content_of(files: Iterable[FileProgress]) -> list[VersionFile]:
    """Returns the files of a version, each path once.

    A delta counts as the file that it produces.

    Raises:
        BadManifest: A file has not ended, or a path has two different contents.
    """
    found: dict[str, VersionFile] = {}
    for each in files:
        if each.sha256 is None:
            raise BadManifest(f"the manifest does not announce the end of {each.path}")
        made = each.whole
        size, sha256 = (each.announced, each.sha256) if made is None else (made.size, made.sha256)
        file = VersionFile(each.path, size, sha256)
        if found.setdefault(each.path, file) != file:
            raise BadManifest(f"{each.path} and the file that its delta produces are different")
    return list(found.values())


class _Plan:
    """Applies an extension to copies of the manifest's state.

    The manifest takes over the copies after `commit`. So an invalid extension changes nothing.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.files = list(manifest.files)
        self.size = manifest.size
        self.base = manifest.base
        self.spans: list[BlockSpan] = []
        self.names = manifest.names
        self._hashes: list[tuple[FileProgress, bytes]] = []
        self._changed: set[int] = set()

    def apply(self, extension: Extension) -> None:
        """Checks and applies an extension to the copies.

        Raises:
            BadManifest: The extension contradicts itself, or earlier extensions.
        """
        if extension.opening is not None:
            self.base = extension.opening.base
            if self.base is not None and self.base.version >= extension.version:
                raise BadManifest(f"the base {self.base.version} is not older than version {extension.version}")
        if extension.files:
            self.names = self.names.copy()
        for entry in extension.files:
            self._declare(entry)
        for shard in extension.shards:
            self._append(shard)
        for end in extension.ended:
            self._end(end)
        if extension.digest is not None:
            self._seal(extension.digest)

    def commit(self) -> None:
        """Appends the new block hashes to the manifest's own files.

        `apply` only collects these hashes: its copy of a file's state is shallow, so appending to the copy's array
        would change the manifest, too. The caller calls `commit` only when `apply` has found the whole extension to be
        valid.
        """
        for file, hashes in self._hashes:
            file.hashes += hashes

    def _declare(self, entry: FileEntry) -> None:
        if len(self.files) == MOST_FILES:
            raise BadManifest(f"the version has more than {MOST_FILES} files")
        if entry.kind == "delta" and self.base is None:
            raise BadManifest(f"{entry.path} is a delta, but the version has no base")
        self.names.add(entry)
        self._changed.add(len(self.files))
        self.files.append(FileProgress(len(self.files), entry.path, entry.kind, entry.expected))

    def _append(self, shard: Shard) -> None:
        file = self._open(shard.file)
        # Offsets are multiples of the block size. So after a shard whose last block is short, no shard can follow.
        if shard.offset != file.announced:
            raise BadManifest(f"a shard of {file.path} begins at byte {shard.offset}, not at {file.announced}")
        most = MOST_FILE_BYTES if file.expected is None else file.expected
        if shard.offset + shard.size > most:
            raise BadManifest(f"{file.path} grows beyond {most} bytes, its expected or largest allowed size")
        self.size += shard.size
        if self.size > MOST_VERSION_BYTES:
            raise BadManifest(f"the version is larger than {MOST_VERSION_BYTES} bytes")
        hashes = bytes.fromhex(shard.blocks)
        self._hashes.append((file, hashes))
        self.spans.append(BlockSpan(file.index, file.blocks, len(hashes) // 32))
        file.announced += shard.size

    def _end(self, end: FileEnd) -> None:
        file = self._open(end.file)
        if end.size != file.announced or file.expected not in {None, end.size}:
            expected = "" if file.expected is None else f", and {file.expected} were expected"
            raise BadManifest(f"{file.path} ends at {end.size} bytes, but {file.announced} were announced{expected}")
        if (end.whole is not None) != (file.kind == "delta"):
            raise BadManifest(f"{file.path}: a delta's end must name the file that it produces, and no other end may")
        file.sha256 = end.sha256
        file.whole = end.whole

    def _seal(self, digest: Digest) -> None:
        try:
            digest_of_files = version_digest(content_of(self.files))
        except InvalidInput as error:
            raise BadManifest(f"the seal is invalid: {error.detail}") from None
        if digest_of_files != digest:
            raise BadManifest(f"the seal has the version digest {digest}, but the files have {digest_of_files}")

    def _open(self, index: int) -> FileProgress:
        """Returns the plan's own copy of the state of a file that has not ended; the plan may change the copy."""
        if index >= len(self.files) or self.files[index].ended:
            raise BadManifest(f"the version has no file {index}, or the file has ended")
        if index not in self._changed:
            self._changed.add(index)
            self.files[index] = replace(self.files[index])
        return self.files[index]


class _Names:
    """Paths of a version.

    Refuses a duplicate, and a path that would be both a file and a folder.
    """

    def __init__(self) -> None:
        self._files: set[tuple[str, str]] = set()
        self._paths: set[str] = set()
        self._folders: set[str] = set()

    def copy(self) -> _Names:
        new = _Names()
        new._files, new._paths, new._folders = set(self._files), set(self._paths), set(self._folders)
        return new

    def add(self, entry: FileEntry) -> None:
        try:
            path = check_path(entry.path)
        except InvalidInput as error:
            raise BadManifest(error.detail, hint=error.hint) from None
        above = [path[: end.start()] for end in _SLASH.finditer(path)]
        if (path, entry.kind) in self._files:
            raise BadManifest(f"{path} is declared twice")
        if path in self._folders or not self._paths.isdisjoint(above):
            raise BadManifest(f"{path} is both a file and a folder")
        self._files.add((path, entry.kind))
        self._paths.add(path)
        self._folders.update(above)


_SLASH = re.compile("/")
