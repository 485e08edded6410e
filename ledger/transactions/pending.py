"""One transaction on its way: what was asked, under which nonce, and every version of it that was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto

from ledger.transactions.fees import Fees
from ledger.transactions.receipts import Receipt
from protocol.identifiers import Address, Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCall:
    """What a transaction does.

    Args:
        to: Whom it calls; None makes a contract of `data`.
        data: ABI-encoded call.
        value: Wei that go along.
        gas: Its limit; None estimates, which also says beforehand why the call would fail.
    """

    to: Address | None
    data: bytes = b""
    value: int = 0
    gas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """One signed version of a transaction, about to be sent. Enough to ask for its outcome after a crash.

    Args:
        nonce: Of all versions of the same transaction at most one can be mined, because they share it.
        transaction: The hash of this version.
        raw: The signed bytes.
    """

    nonce: int
    transaction: Digest
    raw: bytes = field(repr=False)


BroadcastHook = Callable[[Broadcast], Awaitable[None]]
"""Called before each version is sent, so that the caller can write it down first."""


class BroadcastResult(Enum):
    """What the node said to a broadcast."""

    TAKEN = auto()
    """It waits to be mined."""
    UNKNOWN = auto()
    """No answer came: it may or may not wait to be mined."""
    USED = auto()
    """The nonce is in a block already."""
    OCCUPIED = auto()
    """Another transaction waits under the nonce, and ours does not outbid it."""


@dataclass(slots=True, kw_only=True, eq=False)
class TransactionIntent:
    """One logical send, whichever nonce it ends up with.

    Args:
        call: What to do.
        gas: Limit, estimated or given.
        confirmations: Blocks on top of its own before it counts as done.
        hook: Told before each broadcast.
        outcome: Resolves to the receipt, or to the error.
    """

    call: TransactionCall
    outcome: asyncio.Future[Receipt]
    gas: int = 0
    confirmations: int = 0
    hook: BroadcastHook | None = None
    abandoned: bool = False
    """Nobody waits any more: it is seen to its end under its nonce, but never moved to another one."""
    broadcasts: list[Broadcast] = field(default_factory=list)
    """Every version under the current nonce that a node may hold, oldest first."""
    fees: Fees | None = None
    counted: tuple[int, int] | None = None
    """Nonces that were used up while the gas was estimated, after how much was placed; good until more is."""
    sent_at: float = 0.0
    """On the clock's monotonic time, in seconds."""
    unanswered: bool = False
    """The newest version got no answer and is sent again."""
    missing_since_ticks: int = 0
    """Looks in a row at which its nonce was used for good and none of its versions had a receipt."""

    @property
    def nonce(self) -> int | None:
        """The nonce it was last sent under."""
        return self.broadcasts[-1].nonce if self.broadcasts else None

    @property
    def named(self) -> str:
        """Its versions' hashes, as part of a sentence."""
        return " or ".join(broadcast.transaction for broadcast in self.broadcasts) or "a transaction never sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPolicy:
    """How a sender behaves.

    Args:
        bump_after: A transaction that is not mined for so long is offered again for more.
        poll: Time between looks at the chain while something is on its way.
        settled_after: Blocks after which a nonce that somebody else used is never given back by a reorg. Only then is
            a transaction signed again under another nonce, because only then can its former self not be mined.
        most_fee: The most that is ever offered per gas, in wei.
        gas_margin_percent: Added to the estimate; state may change until the block.
        quote_for: How long a look at the market's fees is used.
        patience: How long a transaction is waited for, unless its caller says.
    """

    bump_after: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(milliseconds=200)
    settled_after: int = 0
    most_fee: int = 500 * 10**9
    gas_margin_percent: int = 25
    quote_for: timedelta = timedelta(seconds=5)
    patience: timedelta = timedelta(seconds=90)
