"""Plain values for blocks, transactions and events of the embedded chain."""

from __future__ import annotations

from dataclasses import dataclass

from eth.abc import SignedTransactionAPI
from eth.vm.forks.prague.blocks import PragueBlockHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One event. `position` is its index in the block, from 0."""

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
    """A mined transaction with the fields of its receipt. Gas is in gas units, prices are in wei."""

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
    """A stored block. `state_root` is the header's, unless development controls changed the state later."""

    header: PragueBlockHeader
    state_root: bytes
    size: int

    @property
    def number(self) -> int:
        """Height, 0 for genesis."""
        return int(self.header.block_number)

    @property
    def base_fee(self) -> int:
        """Base fee, in wei per gas."""
        return int(self.header.base_fee_per_gas or 0)

    @property
    def hash(self) -> bytes:
        """Keccak-256 of the header."""
        return bytes(self.header.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedBlock:
    """A newly built block, before it is stored."""

    block: BlockRecord
    transactions: tuple[TransactionRecord, ...]
    logs: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransaction:
    """A transaction in the pool. `arrival` orders transactions with equal tips."""

    transaction: SignedTransactionAPI
    raw: bytes
    sender: bytes
    arrival: int

    @property
    def nonce(self) -> int:
        """The transaction's nonce."""
        return int(self.transaction.nonce)

    @property
    def hash(self) -> bytes:
        """Keccak-256 of the raw transaction."""
        return bytes(self.transaction.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Criteria of `eth_getLogs`: an empty tuple matches anything; `topics[i]` are alternatives for topic i."""

    first: int
    last: int
    addresses: tuple[bytes, ...] = ()
    topics: tuple[tuple[bytes, ...], ...] = ()
