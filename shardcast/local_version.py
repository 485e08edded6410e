"""Local version: an attempt at a version on this disk, complete or partial.

A local version consists of the manifest, the files, and the set of blocks that are present.

Tasks can wait for further blocks and manifest extensions. The methods `writing`, `check` and `truncate` run in worker
threads: they change only files and, under a lock, the reserved sizes. `resume` may run in a thread, because no task
uses the version before `resume` returns. Threads may also call `has` and `path`. All other methods run on the event
loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from shardcast.disk import Writer, disk_errors
from shardcast.errors import BadBlock, VersionGone
from shardcast.manifest.manifest import BlockSpan, FileProgress, Manifest
from shardcast.manifest.records import BLOCK

MANIFEST_NAME = ".manifest"
"""Name of the file that stores the manifest. The name is hidden, because hidden files are not part of a version."""

_STREAM_BYTES = 1 << 18
"""Largest number of bytes that `lines_from` returns, unless a single line is longer."""

Locate = Callable[[FileProgress], Path]
"""Function that returns the path of a file's bytes on this disk."""

Write = Callable[[int, memoryview], None]
"""Function that writes a verified block, given by its number and its bytes, to its place in a file."""


class LocalVersion:
    """A version on this disk, complete or partial.

    The caller must call `start` or `resume` before any other method.

    Args:
        manifest: The manifest of the version, still empty.
        log: File that stores the lines of the manifest.
        locate: Returns the path of a file's bytes.
    """

    def __init__(self, manifest: Manifest, *, log: Path, locate: Locate) -> None:
        self.manifest = manifest
        self.gone = False
        """Whether the version was removed, or replaced by a newer attempt."""
        self.present_bytes = 0
        """Number of verified bytes on this disk."""
        self._log = log
        self._locate = locate
        self._starts = array("Q", [0])
        """Offset in the log at which each extension begins; the last entry is the end of the log."""
        self._have: list[bytearray] = []
        """For each file, one byte per announced block: 1 if the block is present and verified."""
        self._block_waiters: dict[tuple[int, int], list[asyncio.Future[None]]] = {}
        """Futures of tasks that wait for a block, by file and block number."""
        self._change = asyncio.Event()
        self._reserved: dict[int, int] = {}
        """Number of bytes for which disk space is reserved, by file."""
        self._reserving = threading.Lock()
        log.parent.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Creates an empty manifest log."""
        self._log.write_bytes(b"")

    def resume(self) -> list[BlockSpan]:
        """Reads the manifest log that an earlier process left, and returns the blocks that its valid lines announce.

        Each line is verified like a line from a peer. The log is truncated before the first invalid line, such as one
        that a crash left incomplete; peers send the rest again.
        """
        spans: list[BlockSpan] = []
        with disk_errors(self._log), self._log.open("r+b") as file:
            for line in file:
                try:
                    found = self.manifest.read(line if line.endswith(b"\n") else b"")
                except Exception:  # noqa: BLE001 - whatever damage a line has, it ends the valid part of the log
                    break
                spans += found
                self._index_line(len(line), found)
            file.truncate(self._starts[-1])
        return spans

    def append(self, lines: bytes, spans: Iterable[BlockSpan]) -> None:
        """Stores lines that the manifest has accepted, and wakes tasks that wait for the manifest.

        Args:
            lines: One or more lines, each with its line feed.
            spans: Blocks that these lines announce.

        Raises:
            VersionDiskFull: The disk has no room for the lines.
        """
        with disk_errors(self._log), self._log.open("ab") as file:
            file.write(lines)
        pieces = lines.splitlines(keepends=True)
        for piece in pieces[:-1]:
            self._index_line(len(piece), ())
        self._index_line(len(pieces[-1]), spans)
        self.wake()

    def append_untrusted(self, line: bytes) -> list[BlockSpan]:
        """Verifies and stores a manifest line from a peer; returns the blocks that it announces.

        Raises:
            BadManifest: The line is not the publisher's next extension.
            VersionDiskFull: The disk has no room for the line.
        """
        spans = self.manifest.read(line)
        self.append(line if line.endswith(b"\n") else line + b"\n", spans)
        return spans

    # Blocks

    def has(self, file: int, block: int) -> bool:
        """Returns whether a block is present and verified."""
        return file < len(self._have) and block < len(self._have[file]) and bool(self._have[file][block])

    def count_present(self, file: int, block: int, most: int) -> int:
        """Returns the number of consecutive present blocks from `block` on, at most `most`."""
        if file >= len(self._have):
            return 0
        window = self._have[file][block : block + most]
        stop = window.find(0)
        return len(window) if stop < 0 else stop

    def missing(self) -> list[BlockSpan]:
        """Returns the announced blocks that are not on this disk."""
        found: list[BlockSpan] = []
        for span in self.manifest.spans():
            found += span.without(block for block, here in enumerate(self._have[span.file]) if here)
        return found

    def set_present(self, file: int, block: int) -> None:
        """Marks a block as present and verified."""
        if not self._have[file][block]:
            self._have[file][block] = 1
            self.present_bytes += self.manifest.files[file].size_of(block)
            self._wake_block(file, block)

    def set_missing(self, file: int, block: int) -> None:
        """Marks a block as missing."""
        if self._have[file][block]:
            self._have[file][block] = 0
            self.present_bytes -= self.manifest.files[file].size_of(block)

    def path(self, file: int) -> Path:
        """Returns the path of a file's bytes on this disk."""
        return self._locate(self.manifest.files[file])

    # Waiting

    async def wait_for_block(self, file: int, block: int) -> None:
        """Waits until a block is present and verified.

        Raises:
            VersionGone: The version was removed, or replaced by a newer attempt.
        """
        while not self.has(file, block):
            self._raise_if_gone()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._block_waiters.setdefault((file, block), []).append(waiter)
            try:
                await waiter
            finally:
                self._remove_waiter(file, block, waiter)

    async def next_change(self) -> None:
        """Waits until the manifest grows or is sealed, or the version is removed."""
        await self._change.wait()

    def lines_from(self, sequence: int) -> tuple[bytes, int]:
        """Returns stored manifest lines, and the number of the extension that follows these lines.

        The first line is the line of extension `sequence`.

        The lines have at most 256 KiB together, unless the first one alone is longer.
        """
        last = sequence
        while last < len(self._starts) - 1 and self._starts[last + 1] - self._starts[sequence] <= _STREAM_BYTES:
            last += 1
        if last == sequence < len(self._starts) - 1:
            last += 1  # a line of more than 256 KiB is returned alone
        if last <= sequence:
            return b"", sequence
        with self._log.open("rb") as file:
            file.seek(self._starts[sequence])
            return file.read(self._starts[last] - self._starts[sequence]), last

    def wake(self) -> None:
        """Wakes all tasks that wait for the manifest."""
        self._change.set()
        self._change = asyncio.Event()

    def close(self) -> None:
        """Marks the version as removed, and wakes all waiting tasks."""
        self.gone = True
        for file, block in list(self._block_waiters):
            self._wake_block(file, block)
        self.wake()

    # The disk; called from worker threads

    @contextmanager
    def writing(self, file: int) -> Iterator[Write]:
        """Opens a file for one request, and yields the function that writes verified blocks to it.

        Before the first block that exceeds the reserved disk space, the function reserves space for the whole file, as
        far as its size is known.

        Raises:
            VersionDiskFull: The disk has no room for the file; the yielded function raises this.
        """
        state = self.manifest.files[file]
        with Writer(self._locate(state)) as writer:

            def write(block: int, data: memoryview) -> None:
                with self._reserving:
                    so_far = self._reserved.get(file, 0)
                    needed = block * BLOCK + len(data)
                    if needed > so_far:
                        size = max(needed, state.announced, state.expected or 0)
                        writer.reserve(so_far, size)
                        self._reserved[file] = size
                writer.write(data, at=block * BLOCK)

            yield write

    def check(self, span: BlockSpan) -> list[int]:
        """Returns the blocks of a span whose bytes on disk match the signed hashes."""
        state = self.manifest.files[span.file]
        good: list[int] = []
        try:
            file = self._locate(state).open("rb", buffering=0)
        except OSError:
            return good
        buffer = memoryview(bytearray(BLOCK))
        with file:
            for block in range(span.first, span.first + span.count):
                piece = buffer[: state.size_of(block)]
                if os.preadv(file.fileno(), [piece], block * BLOCK) == len(piece) and matches(state, block, piece):
                    good.append(block)
        return good

    def truncate(self, file: int) -> None:
        """Sets a complete file to its announced length, and creates the file if it has no bytes.

        Disk space may have been reserved beyond the file's end, which makes the file longer than announced.

        Raises:
            VersionDiskFull: The disk has no room for the file's directory entry.
        """
        state = self.manifest.files[file]
        with Writer(self._locate(state)) as writer:
            writer.truncate(state.announced)

    # Private

    def _index_line(self, size: int, spans: Iterable[BlockSpan]) -> None:
        self._starts.append(self._starts[-1] + size)
        while len(self._have) < len(self.manifest.files):
            self._have.append(bytearray())
        for span in spans:
            self._have[span.file].extend(bytes(span.count))

    def _wake_block(self, file: int, block: int) -> None:
        for waiter in self._block_waiters.get((file, block), ()):
            if not waiter.done():
                waiter.set_result(None)

    def _remove_waiter(self, file: int, block: int, waiter: asyncio.Future[None]) -> None:
        waiters = self._block_waiters[file, block]
        waiters.remove(waiter)
        if not waiters:
            del self._block_waiters[file, block]

    def _raise_if_gone(self) -> None:
        if self.gone:
            raise VersionGone(f"version {self.manifest.key} was removed here, or replaced by a newer attempt")


def matches(state: FileProgress, block: int, data: memoryview) -> bool:
    """Returns whether the BLAKE3 hash of these bytes is the signed hash of the block."""
    return blake3(data).digest() == state.hash_of(block)


def verify(state: FileProgress, block: int, data: memoryview) -> None:
    """Verifies the bytes of a block against its signed hash.

    Raises:
        BadBlock: The hash of the bytes differs from the signed one.
    """
    if not matches(state, block, data):
        raise BadBlock(f"block {block} of {state.path} differs from the one that the publisher signed")
