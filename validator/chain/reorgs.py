"""Detects chain reorganisations and invalidates data cached from the abandoned branch.

A validator looks at the newest block before it examines anything. If the block that it saw at the look before is gone,
the chain was reorganised, and everything remembered is forgotten: in each process by itself, whoever reads the events.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from ledger.client.ledger import Head
from protocol.errors import NotFound
from protocol.identifiers import Digest

MOST_REMEMBERED = 1024

K = TypeVar("K")
V = TypeVar("V")

_log = structlog.get_logger(__name__)


class Blocks(Protocol):
    """Ledger calls that the tracker needs."""

    async def block_hash(self, number: int) -> Digest:
        """The hash of a block; `NotFound` if the chain has none."""
        ...


@dataclass(frozen=True, slots=True)
class ChainVersion:
    """Version of the chain at the time of a read.

    Args:
        branch: Number of reorganisations seen.
        newest: Newest block seen, -1 before the first look. The tracker does not notice if newer blocks disappear.
    """

    branch: int
    newest: int


class ReorgTracker:
    """The newest block that was seen, and how often one of those was gone at the next look.

    Args:
        blocks: Answers whether a block is still there.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._newest: Head | None = None
        self._branch = 0
        self._looking = asyncio.Lock()

    def mark(self) -> ChainVersion:
        """Returns the present chain version; take it before reading data that will be cached."""
        return ChainVersion(self._branch, -1 if self._newest is None else self._newest.number)

    async def look(self, head: Head) -> None:
        """Takes note of the newest block. Mostly it follows the last one, and then nothing is asked.

        Raises:
            ChainUnavailable: It has to be asked whether the last one still stands, and nobody answers.
        """
        async with self._looking:
            last = self._newest
            if last is None or last.hash in {head.hash, head.parent}:
                self._newest = head
            elif await self._is_there(last):
                if head.number > last.number:  # else an answer that others overtook
                    self._newest = head
            else:
                self._branch += 1
                self._newest = head
                _log.warning("chain-reorganised", gone=last.number, newest=head.number)

    async def _is_there(self, block: Head) -> bool:
        try:
            return await self._blocks.block_hash(block.number) == block.hash
        except NotFound:
            return False


class ReorgAwareCache(Generic[K, V]):
    """The last `MOST_REMEMBERED` answers of the chain, until it is reorganised.

    Args:
        footing: Tells.
    """

    def __init__(self, footing: ReorgTracker) -> None:
        self._footing = footing
        self._branch = footing.mark().branch
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """An answer; None if there is none that counts."""
        self._forget_what_is_gone()
        return self._values.get(key)

    def put(self, key: K, value: V, *, block: int, mark: ChainVersion) -> None:
        """Remembers an answer, unless nobody would notice that it does not hold any more.

        Args:
            key: What was asked.
            value: The answer.
            block: The newest block that it rests on.
            mark: Where we stood before it was asked.
        """
        self._forget_what_is_gone()
        if mark.branch != self._branch or block > mark.newest:
            return
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > MOST_REMEMBERED:
            self._values.popitem(last=False)

    def _forget_what_is_gone(self) -> None:
        branch = self._footing.mark().branch
        if branch != self._branch:
            self._values.clear()
            self._branch = branch
