"""The embedded chain: accepts transactions, mines blocks, runs calls, and reverts to snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from cachetools import LRUCache
from eth.abc import SignedTransactionAPI, StateAPI
from eth.vm.forks.prague import PragueVM
from eth_utils.exceptions import ValidationError
from rlp.exceptions import RLPException

from ledger.devchain.embedded.errors import INVALID_PARAMS, RpcError
from ledger.devchain.embedded.evm import BLOCK_GAS_LIMIT, BlockBuilder, Evm, Refused, UnsignedCall, floor_gas
from ledger.devchain.embedded.pool import TransactionPool
from ledger.devchain.embedded.records import BlockRecord, PendingTransaction
from ledger.devchain.embedded.store import ChainStore
from protocol.errors import Conflict
from protocol.runtime.clock import Clock, SystemClock

_MIN_GAS = 21_000
_LEGACY_FIRST_BYTE = 0xC0  # EIP-2718: RLP lists start at 0xc0, so a lower first byte is a transaction type
_MAX_RAW = 256 * 1024
_CACHED_CALLS = 2_048
_MAX_CACHED_BYTES = 4_096
"""Limits of the call cache: its number of entries, and the bytes of an entry's call data and of its result. So call
data and results each take at most 8 MiB."""
_BUILD_BUDGET = timedelta(seconds=1)
"""Maximum time of building a block. Later transactions go into the next block, so that receipts appear sooner."""
_MAX_BLOCKING = timedelta(milliseconds=40)
"""Longest time that block building blocks the event loop, and with it all requests. Most blocks take less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    block: BlockRecord
    time_offset: int


class EmbeddedChain:
    """One development chain.

    Args:
        store: Holds the blocks and the state.
        chain_id: EIP-155 chain id; must be the one that the store was created with.
        balances: Wei per account in the genesis block of a new store.
        automine: Whether each transaction is mined when it arrives. If not, the caller must call `mine` regularly.
        clock: Clock of timestamps and of the time limits of block building; the system's by default.

    Raises:
        Conflict: The store belongs to a chain with another id.
    """

    def __init__(
        self,
        store: ChainStore,
        *,
        chain_id: int,
        balances: Mapping[bytes, int] | None = None,
        automine: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.store = store
        self.chain_id = chain_id
        self.pool = TransactionPool()
        self.evm = Evm(store, chain_id=chain_id)
        self._automine = automine
        self.arrived = asyncio.Event()
        """Set when a transaction enters the pool; the mining loop clears it."""
        self._lock = asyncio.Lock()
        self._arrivals = itertools.count()
        self._call_cache: LRUCache[tuple[object, ...], bytes] = LRUCache(_CACHED_CALLS)
        self._snapshots: dict[int, _Snapshot] = {}
        self._snapshot_ids = itertools.count(1)
        self._next_timestamp: int | None = None
        self._store_error: str | None = None
        known = store.meta("chain_id")
        if known is not None and int(known) != chain_id:
            raise Conflict(
                f"the state file belongs to chain {known}, not to {chain_id}", hint="choose another file or chain id"
            )
        self._time_offset = int(store.meta("time_offset") or 0)
        head = store.head()
        if head is None:
            store.append(self.evm.genesis(balances=balances or {}, timestamp=self._unix_time()))
            store.set_meta("chain_id", str(chain_id))
            head = store.head()
        if head is None:
            raise RuntimeError("a stored block can't be read back")
        self._head = head

    @property
    def head(self) -> BlockRecord:
        """The newest block."""
        return self._head

    @property
    def automine(self) -> bool:
        """True if each transaction is mined when it arrives."""
        return self._automine

    def state(self, block: BlockRecord | None = None) -> StateAPI:
        """Returns the state after a block, the newest by default. Callers must not modify it."""
        return self.evm.state_at(block or self._head)

    # Transactions and blocks

    async def submit(self, raw: bytes) -> bytes:
        """Accepts a signed transaction and returns its hash; with automine it is mined before this returns.

        Raises:
            RpcError: The transaction can't be decoded, its sender can't pay, or the pool refuses it.
        """
        if self._store_error is not None and not self._automine:  # mining fails now, so a transaction would only wait
            raise RpcError(self._store_error)
        pending = self._accept(raw)
        self.arrived.set()
        if self._automine:
            async with self._lock:
                while self.pool.get(pending.hash) is not None:
                    before = self._head
                    await self._mine()
                    if self._head is before or not self.store.transactions_of(self._head.number):
                        break  # the transaction waits for an earlier nonce or a lower base fee
        return pending.hash

    async def mine(self, *, timestamp: int | None = None) -> BlockRecord:
        """Mines a block from the pool's transactions; the block may be empty."""
        async with self._lock:
            if timestamp is not None:
                self._next_timestamp = timestamp
            return await self._mine()

    async def _mine(self) -> BlockRecord:
        builder = self.evm.builder(self._head, timestamp=self.pending_timestamp())
        taken = await self._fill(builder)
        mined = builder.seal()
        try:
            self.store.append(mined)
        except sqlite3.Error as error:  # such as a full disk; the next block tries the same transactions again
            self._return_to_pool(taken)
            self._store_error = f"can't store a block: {error}"
            raise RpcError(self._store_error) from error
        self._store_error = None
        if self._next_timestamp is not None:
            self._set_offset(self._next_timestamp - self._unix_time())
            self._next_timestamp = None
        self._head = mined.block
        return mined.block

    def _return_to_pool(self, taken: list[PendingTransaction]) -> None:
        state = self.state()
        for pending in taken:
            with contextlib.suppress(RpcError):  # the sender has replaced the transaction meanwhile
                self.pool.add(pending, next_nonce=int(state.get_nonce(pending.transaction.sender)))

    async def _fill(self, builder: BlockBuilder) -> list[PendingTransaction]:
        taken = []
        yielded_at = self._clock.monotonic()
        deadline = yielded_at + _BUILD_BUDGET.total_seconds()
        for pending in self.pool.executable(base_fee=builder.base_fee, nonce_of=builder.nonce_of):
            if self._clock.monotonic() > deadline or builder.gas_left < _MIN_GAS:
                break
            if int(pending.transaction.gas) > builder.gas_left:
                continue
            with contextlib.suppress(Refused):  # dropped: the sender has the hash already and can't be notified
                builder.take(pending)
                taken.append(pending)
            self.pool.remove(pending)
            if self._clock.monotonic() - yielded_at > _MAX_BLOCKING.total_seconds():
                await asyncio.sleep(0)
                yielded_at = self._clock.monotonic()
        return taken

    def _accept(self, raw: bytes) -> PendingTransaction:
        transaction = _decode(raw)
        sender = bytes(transaction.sender)
        state = self.state()
        if transaction.chain_id not in {None, self.chain_id}:
            raise RpcError(f"invalid chain id for signer: have {transaction.chain_id} want {self.chain_id}")
        if transaction.gas > BLOCK_GAS_LIMIT:
            raise RpcError(f"exceeds block gas limit: {transaction.gas} > {BLOCK_GAS_LIMIT}")
        if transaction.gas < transaction.intrinsic_gas:
            raise RpcError(f"intrinsic gas too low: gas {transaction.gas}, minimum needed {transaction.intrinsic_gas}")
        if transaction.gas < (floor := floor_gas(transaction.data)):  # py-evm would charge more than this limit
            raise RpcError(f"insufficient gas for floor data gas cost: gas {transaction.gas}, minimum needed {floor}")
        if transaction.max_priority_fee_per_gas > transaction.max_fee_per_gas:
            raise RpcError("max priority fee per gas higher than max fee per gas")
        pending = PendingTransaction(transaction=transaction, raw=raw, sender=sender, arrival=next(self._arrivals))
        if self.store.transaction(pending.hash) is not None:
            raise RpcError("already known")
        cost = transaction.gas * transaction.max_fee_per_gas + transaction.value
        balance = state.get_balance(transaction.sender)
        next_nonce = int(state.get_nonce(transaction.sender))
        if pending.nonce >= next_nonce and balance < cost:
            raise RpcError(f"insufficient funds for gas * price + value: balance {balance}, tx cost {cost}")
        self.pool.add(pending, next_nonce=next_nonce)
        return pending

    # Time

    def _unix_time(self) -> int:
        return int(self._clock.now().timestamp())

    def pending_timestamp(self) -> int:
        """Returns the timestamp of a block mined now, Unix time in seconds."""
        if self._next_timestamp is not None:
            return self._next_timestamp
        return max(self._unix_time() + self._time_offset, int(self._head.header.timestamp))

    def increase_time(self, seconds: int) -> int:
        """Moves the chain's clock forward; returns its total offset from the system clock, in seconds."""
        self._set_offset(self._time_offset + seconds)
        return self._time_offset

    def set_next_timestamp(self, timestamp: int) -> None:
        """Sets the timestamp of the next block; the chain's clock continues from there.

        Raises:
            RpcError: The timestamp is lower than the newest block's.
        """
        if timestamp < int(self._head.header.timestamp):
            raise RpcError(f"timestamp {timestamp} is lower than the newest block's", code=INVALID_PARAMS)
        self._next_timestamp = timestamp

    def _set_offset(self, seconds: int) -> None:
        self._time_offset = seconds
        self.store.set_meta("time_offset", str(seconds))

    # Development controls

    def snapshot(self) -> int:
        """Takes a snapshot and returns its id."""
        number = next(self._snapshot_ids)
        self._snapshots[number] = _Snapshot(block=self._head, time_offset=self._time_offset)
        return number

    async def revert(self, number: int) -> bool:
        """Reverts to a snapshot, deletes this and all later snapshots, and clears the pool.

        Returns False if there is no such snapshot.
        """
        async with self._lock:
            snapshot = self._snapshots.get(number)
            if snapshot is None:
                return False
            self.store.truncate(snapshot.block.number, snapshot.block.state_root)
            self._head = snapshot.block
            self._set_offset(snapshot.time_offset)
            self._next_timestamp = None
            self.pool.clear()
            self._snapshots = {key: value for key, value in self._snapshots.items() if key < number}
            return True

    async def set_balance(self, account: bytes, balance: int) -> None:
        """Sets an account's balance in wei, without a transaction."""
        async with self._lock:
            root = self.evm.with_balance(self._head, account, balance)
            self.store.replace_state(self._head.number, root)
            self._head = BlockRecord(header=self._head.header, state_root=root, size=self._head.size)

    # Calls

    def call(self, call: UnsignedCall, block: BlockRecord | None) -> bytes:
        """Runs a call on the state after `block`.

        If `block` is None, the call runs in the context of the next block.
        """
        if block is not None:
            return self._cached_call(call, block)
        header = self.evm.next_header(self._head, timestamp=self.pending_timestamp())
        return self.evm.call(call, header=header, state_root=self._head.state_root)

    def _cached_call(self, call: UnsignedCall, block: BlockRecord) -> bytes:
        """Runs a call on a block's state, with an LRU cache: the result never changes, and services repeat calls."""
        header = block.header
        key = (header.parent_hash, header.timestamp, header.block_number, block.state_root, call)
        if (known := self._call_cache.get(key)) is not None:
            return known
        result = self.evm.call(call, header=header, state_root=block.state_root)
        if max(len(result), len(call.data)) <= _MAX_CACHED_BYTES:
            self._call_cache[key] = result
        return result

    def estimate(self, call: UnsignedCall) -> int:
        """Estimates the gas of a transaction in the next block."""
        header = self.evm.next_header(self._head, timestamp=self.pending_timestamp())
        return self.evm.estimate(call, header=header, state_root=self._head.state_root)


def _decode(raw: bytes) -> SignedTransactionAPI:
    if not raw or len(raw) > _MAX_RAW:
        raise RpcError(f"a transaction has 1 to {_MAX_RAW} bytes, this has {len(raw)}", code=INVALID_PARAMS)
    if raw[0] < _LEGACY_FIRST_BYTE and raw[0] not in {1, 2}:
        raise RpcError(f"transaction type {raw[0]} not supported")
    try:
        transaction = PragueVM.get_transaction_builder().decode(raw)
        transaction.validate()
        transaction.check_signature_validity()
    except (ValidationError, RLPException, ValueError, TypeError) as error:
        raise RpcError(f"rlp: transaction can't be decoded: {str(error)[:200]}", code=INVALID_PARAMS) from error
    return transaction
