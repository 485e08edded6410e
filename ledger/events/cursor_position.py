"""Where an event cursor stands, and how that changes: values in, values out, no chain and no disk.

A position remembers the hashes of the newest blocks that were read (they need not be neighbours) and the events that
were delivered from them. When one of the hashes is not on the chain any more, everything after the newest one that
still is has vanished: those events are taken back, newest first, and reading goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile

from pydantic import TypeAdapter

from ledger.transactions.receipts import EventLog
from protocol.identifiers import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRef:
    """A block by height and hash."""

    number: int
    hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a cursor has read.

    Args:
        next_block: The first block not read yet.
        read: The newest blocks read whose hashes are remembered, oldest first.
        delivered: Events from blocks after the oldest remembered one, in the chain's order.
        complete: Nothing was ever forgotten: before the oldest remembered block lies only the start.
        filter: What it reads; another filter needs another position.
    """

    next_block: int
    read: tuple[BlockRef, ...] = ()
    delivered: tuple[EventLog, ...] = ()
    complete: bool = True
    filter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """A position after a reorg, and the events that vanished, newest first."""

    position: Position
    vanished: tuple[EventLog, ...]


def rewind(position: Position, *, ancestor: BlockRef | None, start: int) -> Rewound | None:
    """Goes back to the newest remembered block that is still on the chain.

    Args:
        position: Where the cursor stands.
        ancestor: That block, one of `position.read`; None if none of them is left.
        start: The cursor's first block.

    Returns:
        The position there; None if the reorg goes deeper than what is remembered, so that it can't be undone.
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
        vanished=tuple(log for log in reversed(position.delivered) if log.block_number >= resume),
    )


def advance(position: Position, *, upto: BlockRef, logs: tuple[EventLog, ...], memory: int) -> Position:
    """Moves past a range that was read.

    Args:
        position: Where the cursor stood.
        upto: The last block of the range.
        logs: The range's events, in the chain's order.
        memory: How many blocks below the newest are remembered; a reorg may be as deep.
    """
    horizon = upto.number - memory
    everything = (*position.read, upto)
    # The newest one at or below the horizon stays: it is what a reorg of exactly `memory` blocks falls back to.
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
    """The blocks to read next, first and last; None if `target` is read already.

    Args:
        position: Where the cursor stands.
        target: The newest block that may be read.
        span: The most blocks to ask for at once.
    """
    if position.next_block > target:
        return None
    return position.next_block, min(target, position.next_block + span - 1)


_ADAPTER = TypeAdapter(Position)


def dump(position: Position) -> bytes:
    """The position as JSON, for a store."""
    return _ADAPTER.dump_json(position)


def load(stored: bytes) -> Position:
    """The position that `dump` wrote.

    Raises:
        ValueError: It did not.
    """
    return _ADAPTER.validate_json(stored)
