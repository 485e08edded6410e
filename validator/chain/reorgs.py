"""Detects chain reorganisations and invalidates data cached from the abandoned branch.

A validator reads the newest block before each examination. If the block of its previous read is gone, the chain was
reorganised, and all cached chain data is dropped. Each process detects this by itself, because not every process reads
the ledger's events.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cachetools import LRUCache

from ledger.events.cursor_position import BlockRef
from ledger.events.source import Header
from protocol.errors import NotFound
from protocol.identifiers import Digest
from protocol.runtime.logs import get_logger

MOST_REMEMBERED = 1024
"""Maximum number of entries of one cache."""

K = TypeVar("K")
V = TypeVar("V")

_log = get_logger(__name__)


class Blocks(Protocol):
    """Chain reads that the reorg tracker needs."""

    async def block_hash(self, number: int) -> Digest:
        """Returns the hash of a block; raises `NotFound` if the chain has no such block."""
        ...


@dataclass(frozen=True, slots=True)
class ChainVersion:
    """State of the chain as the reorg tracker had seen it before some chain data was read.

    Args:
        branch: Number of reorganisations that the tracker has detected.
        newest: Number of the newest block that the tracker has seen; -1 before the first block. The tracker can't
            detect a reorganisation that replaces only later blocks.
    """

    branch: int
    newest: int


class ReorgTracker:
    """Tracks the newest block that was read, and counts reorganisations.

    Args:
        blocks: Reads block hashes.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._newest: BlockRef | None = None
        self._branch = 0
        self._looking = asyncio.Lock()

    def mark(self) -> ChainVersion:
        """Returns the present chain version. Callers get it before they read chain data, and pass it to the cache."""
        return ChainVersion(self._branch, -1 if self._newest is None else self._newest.number)

    async def observe(self, newest: Header) -> None:
        """Records the newest block, and counts a reorganisation if the last recorded block is gone.

        Usually the newest block is the last recorded one or its child, so that no further read is needed.

        Raises:
            ChainUnavailable: The chain did not answer when asked for the last recorded block.
        """
        async with self._looking:
            last, head = self._newest, newest.ref
            if last is None or last.hash in {head.hash, newest.parent}:
                self._newest = head
            elif await self._is_there(last):
                if head.number > last.number:  # a lower number is an older answer that arrived late
                    self._newest = head
            else:
                self._branch += 1
                self._newest = head
                _log.warning("chain-reorganised", gone=last.number, newest=head.number)

    async def _is_there(self, block: BlockRef) -> bool:
        try:
            return await self._blocks.block_hash(block.number) == block.hash
        except NotFound:
            return False


class ReorgAwareCache(Generic[K, V]):
    """LRU cache of chain data, which a detected reorganisation empties.

    Args:
        reorgs: Tracker that detects reorganisations.
    """

    def __init__(self, reorgs: ReorgTracker) -> None:
        self._reorgs = reorgs
        self._branch = reorgs.mark().branch
        self._values: LRUCache[K, V] = LRUCache(MOST_REMEMBERED)

    def get(self, key: K) -> V | None:
        """Returns the cached value; None if there is none, or if a reorganisation emptied the cache."""
        self._drop_if_reorganised()
        return self._values.get(key)

    def put(self, key: K, value: V, *, block: int, mark: ChainVersion) -> None:
        """Caches a value, unless the tracker could miss a reorganisation that invalidates the value.

        The value is not cached if a reorganisation was detected during the read, or if it depends on a block that the
        tracker has not seen.

        Args:
            key: Key of the value.
            value: The value.
            block: Number of the newest block on which the value depends.
            mark: Chain version that was taken before the value was read.
        """
        self._drop_if_reorganised()
        if mark.branch != self._branch or block > mark.newest:
            return
        self._values[key] = value

    def _drop_if_reorganised(self) -> None:
        branch = self._reorgs.mark().branch
        if branch != self._branch:
            self._values.clear()
            self._branch = branch
