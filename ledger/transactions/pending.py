"""State of a transaction in flight: its call, its nonce, and every version that was sent.

Versions of a transaction make the same call; they differ in fees and perhaps in the nonce.
"""

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
    """The call that a transaction makes.

    Args:
        to: The called address; None creates a contract from `data`.
        data: ABI-encoded call.
        value: Wei to transfer.
        gas: Gas limit; None estimates it, which also finds a revert before anything is sent.
        least_gas: Minimum of an estimated limit, for calls that may need more gas in their own block than on the newest
            block, which the estimate uses.
        name: Contract and function, such as `ComputePools.end`, for messages.
    """

    to: Address | None
    data: bytes = b""
    value: int = 0
    gas: int | None = None
    least_gas: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """One signed version of a transaction.

    A caller stores the version before it is sent, to query the outcome after a crash.

    Args:
        nonce: Nonce of the version. Of all versions with one nonce, at most one can be mined.
        transaction: Hash of this version.
        raw: The signed bytes.
    """

    nonce: int
    transaction: Digest
    raw: bytes = field(repr=False)


BroadcastHook = Callable[[Broadcast], Awaitable[None]]
"""Called before each version is sent, so that the caller can store it first."""


class BroadcastResult(Enum):
    """The node's response to a broadcast."""

    TAKEN = auto()
    """Accepted; the transaction is pending."""
    UNKNOWN = auto()
    """No response: the transaction may or may not be pending."""
    USED = auto()
    """Refused: the nonce is in a block already."""
    OCCUPIED = auto()
    """Refused: another transaction is pending under the nonce, and ours does not pay enough to replace it."""


@dataclass(slots=True, kw_only=True, eq=False)
class TransactionIntent:
    """One logical send; its nonce may change until it is mined.

    Args:
        call: The call to make.
        gas: Gas limit, estimated or given.
        confirmations: Number of blocks on top of the transaction's block before `outcome` is set.
        hook: Called before each broadcast.
        outcome: Resolves to the receipt or an error.
    """

    call: TransactionCall
    outcome: asyncio.Future[Receipt]
    gas: int = 0
    confirmations: int = 0
    hook: BroadcastHook | None = None
    abandoned: bool = False
    """The caller no longer waits: the transaction is watched under its nonce, but never signed under another one."""
    broadcasts: list[Broadcast] = field(default_factory=list)
    """Every version under the current nonce that a node may hold, oldest first."""
    fees: Fees | None = None
    nonce_hint: tuple[int, int] | None = None
    """Result of `NonceAllocator.nonce_hint`, read while the gas was estimated."""
    sent_at: float = 0.0
    """Time of the newest broadcast, in seconds of the clock's monotonic time."""
    unanswered: bool = False
    """The newest version got no response and is sent again."""
    missing_since_ticks: int = 0
    """Number of consecutive polls at which the nonce was used irreversibly and no version had a receipt."""

    @property
    def nonce(self) -> int | None:
        """The nonce of the newest broadcast."""
        return self.broadcasts[-1].nonce if self.broadcasts else None

    @property
    def hashes_text(self) -> str:
        """The hashes of the transaction's versions, for error messages."""
        return " or ".join(broadcast.transaction for broadcast in self.broadcasts) or "a transaction never sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPolicy:
    """Settings of a transaction sender.

    Args:
        bump_after: A transaction that is not mined after this time is replaced by a version with higher fees.
        poll: Maximum polling interval while transactions are in flight.
        settled_after: Reorg depth in blocks. If another sender used our nonce, the transaction is signed again with a
            new nonce, but only after this many blocks. Until then a reorg could still let the old transaction be mined.
        most_fee: Maximum fee per gas that is ever offered, in wei.
        gas_margin_percent: Percentage added to the gas estimate, because the state may change before the block.
        quote_for: Time for which queried market fees are cached.
        deadline: Time that `send` waits for a transaction, unless its caller sets a deadline.
    """

    bump_after: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(milliseconds=200)
    settled_after: int = 0
    most_fee: int = 500 * 10**9
    gas_margin_percent: int = 25
    quote_for: timedelta = timedelta(seconds=5)
    deadline: timedelta = timedelta(seconds=90)
