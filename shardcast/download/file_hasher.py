"""Computes the SHA-256 of a version's files while their blocks arrive.

The SHA-256 is a second check, after the BLAKE3 hash of each block.

Blocks arrive in any order, but SHA-256 needs the bytes of a file in sequence. So the hasher always continues with the
next blocks that are present without a gap. The hasher computes in a thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from protocol.runtime.threads import run_in_thread
from shardcast.local_version import LocalVersion
from shardcast.manifest.manifest import FileProgress
from shardcast.manifest.records import BLOCK

_STEP_BLOCKS = 32
"""Maximum number of blocks that are hashed per call into a thread; a cancellation takes effect between calls."""

_LAG_BLOCKS = 8
"""Minimum number of blocks that are hashed per call into a thread, except at the end of the announced blocks. A call
for every block would take as much time as writing the block."""


class FileHasher:
    """Hashes the wanted files of a version, one after another, as their blocks arrive.

    Args:
        local: The version.
        wanted: Function that selects the files to hash; all files by default.
    """

    def __init__(self, local: LocalVersion, *, wanted: Callable[[FileProgress], bool] = lambda _: True) -> None:
        self._local = local
        self._wanted = wanted
        self._buffer = memoryview(bytearray(BLOCK))

    async def wrong_files(self) -> list[int]:
        """Hashes all wanted files, and returns the indexes of files with a wrong SHA-256.

        The call waits until the version is sealed and the last wanted block is present.

        Raises:
            VersionGone: The version was removed, or replaced by a newer attempt.
        """
        wrong: list[int] = []
        index = 0
        manifest = self._local.manifest
        while True:
            while index >= len(manifest.files) and not manifest.sealed:
                await self._local.next_change()
            if index >= len(manifest.files):
                return wrong
            if self._wanted(manifest.files[index]) and not await self._is_correct(index):
                wrong.append(index)
            index += 1

    async def _is_correct(self, index: int) -> bool:
        local = self._local
        sha256 = hashlib.sha256()
        done = 0
        while True:
            state = local.manifest.files[index]
            if done < state.blocks:
                await local.wait_for_block(index, done)
                await local.wait_for_block(index, min(done + _LAG_BLOCKS, state.blocks) - 1)
                run = local.count_present(index, done, _STEP_BLOCKS)
                await run_in_thread(self._update, sha256, local.path(index), done * BLOCK, (done + run) * BLOCK)
                done += run
            elif state.ended:
                return sha256.hexdigest() == state.sha256
            else:
                await local.next_change()

    def _update(self, sha256: hashlib._Hash, path: Path, start: int, end: int) -> None:
        with path.open("rb", buffering=0) as file:
            while start < end:
                read = os.preadv(file.fileno(), [self._buffer[: min(BLOCK, end - start)]], start)
                if not read:
                    return  # end of the file: its last block is shorter than a full one
                sha256.update(self._buffer[:read])
                start += read
