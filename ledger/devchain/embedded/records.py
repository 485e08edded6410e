"""What the embedded chain stores and answers with, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from eth.abc import SignedTransactionAPI
from eth.vm.forks.prague.blocks import PragueBlockHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One event. `position` counts from 0 within the block."""

    block: int
    block_hash: bytes
    position: int
    transaction: bytes
    transaction_position: int
    address: bytes
    topics: tuple[bytes, ...]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A mined transaction with what its receipt says. Gas and prices in gas units and wei."""

    hash: bytes
    block: int
    block_hash: bytes
    position: int
    raw: bytes
    sender: bytes
    success: bool
    gas_used: int
    cumulative_gas: int
    gas_price: int
    created: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecord:
    """A stored block. `state_root` is the header's unless the development controls changed the state after it."""

    header: PragueBlockHeader
    state_root: bytes
    size: int

    @property
    def number(self) -> int:
        """Height, 0 for genesis."""
        return int(self.header.block_number)

    @property
    def base_fee(self) -> int:
        """Wei per gas that every transaction in it pays at least."""
        return int(self.header.base_fee_per_gas or 0)

    @property
    def hash(self) -> bytes:
        """Keccak-256 of the header."""
        return bytes(self.header.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedBlock:
    """A block just built, before it is stored."""

    block: BlockRecord
    transactions: tuple[TransactionRecord, ...]
    logs: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransaction:
    """A transaction that waits in the pool. `arrival` orders equals by time."""

    transaction: SignedTransactionAPI
    raw: bytes
    sender: bytes
    arrival: int

    @property
    def nonce(self) -> int:
        """The sender's count that this transaction uses up."""
        return int(self.transaction.nonce)

    @property
    def hash(self) -> bytes:
        """Keccak-256 of the raw transaction."""
        return bytes(self.transaction.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Which events are asked for: an empty tuple means any; `topics[i]` are alternatives for topic i."""

    first: int
    last: int
    addresses: tuple[bytes, ...] = ()
    topics: tuple[tuple[bytes, ...], ...] = ()
