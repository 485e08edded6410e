"""SHA-256 of a version's files while they arrive: the second line behind the blocks' own hashes.

Blocks come in any order and SHA-256 does not, so it follows the part of a file that has no gap, in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from shardcast.local_version import LocalVersion
from shardcast.manifest.manifest import FileProgress
from shardcast.manifest.records import BLOCK

_STEP_BLOCKS = 32
"""Blocks hashed between two looks at whether the work was cancelled."""

_LAG_BLOCKS = 8
"""Announced blocks that are waited for before a thread hashes them: a hand-over for each block would cost as much as
its share of the writing."""


class FileHasher:
    """Hashes the wanted files of a local, one after another, as far as they are there.

    Args:
        local: What is arriving.
        wanted: Which files.
    """

    def __init__(self, local: LocalVersion, *, wanted: Callable[[FileProgress], bool] = lambda _: True) -> None:
        self._local = local
        self._wanted = wanted
        self._buffer = memoryview(bytearray(BLOCK))

    async def wrong_files(self) -> list[int]:
        """Waits for the last byte; returns the files whose SHA-256 is not what the publisher signed.

        Raises:
            VersionGone: The version was voided meanwhile.
        """
        wrong: list[int] = []
        index = 0
        manifest = self._local.manifest
        while True:
            while index >= len(manifest.files) and not manifest.sealed:
                await self._local.next_change()
            if index >= len(manifest.files):
                return wrong
            if self._wanted(manifest.files[index]) and not await self._is_right(index):
                wrong.append(index)
            index += 1

    async def _is_right(self, index: int) -> bool:
        local = self._local
        sha256 = hashlib.sha256()
        done = 0
        while True:
            state = local.manifest.files[index]
            if done < state.blocks:
                await local.wait_for_block(index, done)
                await local.wait_for_block(index, min(done + _LAG_BLOCKS, state.blocks) - 1)
                run = local.count_present(index, done, _STEP_BLOCKS)
                await asyncio.to_thread(self._update, sha256, local.path(index), done * BLOCK, (done + run) * BLOCK)
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
                    return  # the last block is shorter
                sha256.update(self._buffer[:read])
                start += read
