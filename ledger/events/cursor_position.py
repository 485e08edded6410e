"""Position of an event cursor and its transitions, as pure functions.

A position remembers the hashes of the newest blocks read, which need not be adjacent, and the delivered events of all
blocks after the oldest of them. After a reorg the newest remembered block that is still on the chain is the common
ancestor: events after it are reverted, newest first, and reading continues from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile

from pydantic import TypeAdapter

from ledger.transactions.receipts import EventLog
from protocol.identifiers import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRef:
    """Height and hash of a block."""

    number: int
    hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position of a cursor in the chain.

    Args:
        next_block: The first block not read yet.
        read: The newest blocks read, with their hashes, oldest first.
        delivered: Delivered events in the chain's order: all of them while `complete` is True, else at least those
            after the oldest block in `read`.
        complete: True until a block is dropped from `read`. While it is True, even a reorg from the start block can be
            undone.
        filter: Identity of the event filter. A cursor with another filter does not use this position.
    """

    next_block: int
    read: tuple[BlockRef, ...] = ()
    delivered: tuple[EventLog, ...] = ()
    complete: bool = True
    filter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """A position after a reorg, and the removed events, newest first."""

    position: Position
    removed: tuple[EventLog, ...]


def rewind(position: Position, *, ancestor: BlockRef | None, start: int) -> Rewound | None:
    """Moves a position back to the common ancestor of the old and the new branch.

    Args:
        position: The current position.
        ancestor: The newest block of `position.read` that is still on the chain; None if there is none.
        start: The cursor's first block.

    Returns:
        The position and the removed events; None if the reorg is deeper than the remembered blocks.
    """
    if ancestor is None and not position.complete:
        return None
    resume = start if ancestor is None else ancestor.number + 1
    return Rewound(
        position=Position(
            next_block=resume,
            read=tuple(ref for ref in position.read if ref.number < resume),
            delivered=tuple(log for log in position.delivered if log.block_number < resume),
            complete=position.complete,
            filter=position.filter,
        ),
        removed=tuple(log for log in reversed(position.delivered) if log.block_number >= resume),
    )


def advance(position: Position, *, upto: BlockRef, logs: tuple[EventLog, ...], memory: int) -> Position:
    """Moves a position past a range of blocks that was read.

    Args:
        position: The position before the range.
        upto: The last block of the range.
        logs: The range's events, in the chain's order.
        memory: Number of blocks below the newest that are remembered: the depth of reorg that can be undone.
    """
    horizon = upto.number - memory
    everything = (*position.read, upto)
    # Keep the newest block at or below the horizon: a reorg of exactly `memory` blocks falls back to it.
    below = [ref for ref in everything if ref.number <= horizon]
    read = (*below[-1:], *(ref for ref in everything if ref.number > horizon))
    oldest = read[0].number
    forgets = len(read) < len(everything)
    return Position(
        next_block=upto.number + 1,
        read=read,
        delivered=tuple(dropwhile(lambda log: forgets and log.block_number <= oldest, (*position.delivered, *logs))),
        complete=position.complete and not forgets,
        filter=position.filter,
    )


def next_range(position: Position, *, target: int, span: int) -> tuple[int, int] | None:
    """Returns the first and last block to read next; None if `target` is read already.

    Args:
        position: The current position.
        target: The newest block that may be read.
        span: Maximum blocks per request.
    """
    if position.next_block > target:
        return None
    return position.next_block, min(target, position.next_block + span - 1)


_ADAPTER = TypeAdapter(Position)


def dump(position: Position) -> bytes:
    """Serialises a position as JSON."""
    return _ADAPTER.dump_json(position)


def load(stored: bytes) -> Position:
    """Parses a position written by `dump`.

    Raises:
        ValueError: The bytes are not a position.
    """
    return _ADAPTER.validate_json(stored)
