"""The chain as one object: takes transactions, mines on time or on arrival, goes back to snapshots, reads any block."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

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

_MIN_GAS = 21_000
_LEGACY_FIRST_BYTE = 0xC0  # EIP-2718: an RLP list begins there, so a first byte below is a transaction's type
_MAX_RAW = 256 * 1024
_MOST_KEPT = 2_048
_LONGEST_KEPT = 4_096
"""Answers of calls that are kept, and their longest in bytes: 8 MiB together at the most, and questions as much."""
_BUILD_BUDGET = timedelta(seconds=1)
"""A block is sealed after this long although more transactions wait, so that nobody waits for all the others."""
_TURN = timedelta(milliseconds=40)
"""Questions wait for so long while a block is made. Most blocks take less: everybody waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    block: BlockRecord
    time_offset: int


class EmbeddedChain:
    """One chain.

    Args:
        store: Where it is kept.
        chain_id: EIP-155's; must be the one that the store was made with.
        balances: Wei per account in the first block of a new store.
        automine: Mine at once when a transaction arrives; otherwise somebody calls `mine` on time.

    Raises:
        Conflict: The store belongs to a chain with another id.
    """

    def __init__(
        self, store: ChainStore, *, chain_id: int, balances: Mapping[bytes, int] | None = None, automine: bool = True
    ) -> None:
        self.store = store
        self.chain_id = chain_id
        self.pool = TransactionPool()
        self.evm = Evm(store, chain_id=chain_id)
        self._automine = automine
        self.arrived = asyncio.Event()
        """Set when a transaction came that waits for a block; whoever mines clears it."""
        self._lock = asyncio.Lock()
        self._arrivals = itertools.count()
        self._answers: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._snapshots: dict[int, _Snapshot] = {}
        self._snapshot_ids = itertools.count(1)
        self._next_timestamp: int | None = None
        self._fault: str | None = None
        known = store.meta("chain_id")
        if known is not None and int(known) != chain_id:
            raise Conflict(
                f"the state file belongs to chain {known}, not to {chain_id}", hint="choose another file or chain id"
            )
        self._time_offset = int(store.meta("time_offset") or 0)
        head = store.head()
        if head is None:
            store.append(self.evm.genesis(balances=balances or {}, timestamp=int(time.time())))
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
        """Whether each transaction is mined as it arrives."""
        return self._automine

    def state(self, block: BlockRecord | None = None) -> StateAPI:
        """The state after a block, the newest if none is named. Not to be written to."""
        return self.evm.state_at(block or self._head)

    # Transactions and blocks

    async def submit(self, raw: bytes) -> bytes:
        """Takes a signed transaction and returns its hash; with automine it is in a block by then.

        Raises:
            RpcError: It can't be decoded, paid for, or placed in the pool.
        """
        if self._fault is not None and not self._automine:  # nothing is mined: better said now than never
            raise RpcError(self._fault)
        pending = self._accept(raw)
        self.arrived.set()
        if self._automine:
            async with self._lock:
                while self.pool.get(pending.hash) is not None:
                    before = self._head
                    await self._mine()
                    if self._head is before or not self.store.transactions_of(self._head.number):
                        break  # it waits for an earlier nonce or a lower base fee
        return pending.hash

    async def mine(self, *, timestamp: int | None = None) -> BlockRecord:
        """Makes a block of what waits, empty if nothing does."""
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
        except sqlite3.Error as error:  # the disk may be full: what the block held waits for the next one
            self._give_back(taken)
            self._fault = f"a block can't be kept: {error}"
            raise RpcError(self._fault) from error
        self._fault = None
        if self._next_timestamp is not None:
            self._set_offset(self._next_timestamp - int(time.time()))
            self._next_timestamp = None
        self._head = mined.block
        return mined.block

    def _give_back(self, taken: list[PendingTransaction]) -> None:
        state = self.state()
        for pending in taken:
            with contextlib.suppress(RpcError):  # replaced by its sender meanwhile
                self.pool.add(pending, next_nonce=int(state.get_nonce(pending.transaction.sender)))

    async def _fill(self, builder: BlockBuilder) -> list[PendingTransaction]:
        taken = []
        turn = time.monotonic()
        deadline = turn + _BUILD_BUDGET.total_seconds()
        for pending in self.pool.executable(base_fee=builder.base_fee, nonce_of=builder.nonce_of):
            if time.monotonic() > deadline or builder.gas_left < _MIN_GAS:
                break
            if int(pending.transaction.gas) > builder.gas_left:
                continue
            with contextlib.suppress(Refused):  # nobody can be told; the sender sees that it is gone
                builder.take(pending)
                taken.append(pending)
            self.pool.remove(pending)
            if time.monotonic() - turn > _TURN.total_seconds():
                await asyncio.sleep(0)
                turn = time.monotonic()
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
        if transaction.gas < (floor := floor_gas(transaction.data)):  # py-evm would charge it beyond the limit
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

    def pending_timestamp(self) -> int:
        """Unix time in seconds that a block made now would carry."""
        if self._next_timestamp is not None:
            return self._next_timestamp
        return max(int(time.time()) + self._time_offset, int(self._head.header.timestamp))

    def increase_time(self, seconds: int) -> int:
        """Moves the chain's clock forward; returns its whole lead over the machine's, in seconds."""
        self._set_offset(self._time_offset + seconds)
        return self._time_offset

    def set_next_timestamp(self, timestamp: int) -> None:
        """Chooses the time of the next block; the clock goes on from there.

        Raises:
            RpcError: It lies before the newest block.
        """
        if timestamp < int(self._head.header.timestamp):
            raise RpcError(f"timestamp {timestamp} is lower than the newest block's", code=INVALID_PARAMS)
        self._next_timestamp = timestamp

    def _set_offset(self, seconds: int) -> None:
        self._time_offset = seconds
        self.store.set_meta("time_offset", str(seconds))

    # Development controls

    def snapshot(self) -> int:
        """Remembers the chain as it is."""
        number = next(self._snapshot_ids)
        self._snapshots[number] = _Snapshot(block=self._head, time_offset=self._time_offset)
        return number

    async def revert(self, number: int) -> bool:
        """Goes back to a snapshot, which is used up with all later ones; what waits in the pool is forgotten."""
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
        """Gives an account as many wei as asked, from nowhere."""
        async with self._lock:
            root = self.evm.with_balance(self._head, account, balance)
            self.store.replace_state(self._head.number, root)
            self._head = BlockRecord(header=self._head.header, state_root=root, size=self._head.size)

    # Calls

    def call(self, call: UnsignedCall, block: BlockRecord | None) -> bytes:
        """What a call returns after `block`; None asks for the block that would come next."""
        if block is not None:
            return self._answer(call, block)
        header = self.evm.next_header(self._head, timestamp=self.pending_timestamp())
        return self.evm.call(call, header=header, state_root=self._head.state_root)

    def _answer(self, call: UnsignedCall, block: BlockRecord) -> bytes:
        """What a call returns after a block never changes, and pollers ask the same again and again."""
        header = block.header
        asked = (header.parent_hash, header.timestamp, header.block_number, block.state_root, call)
        if asked in self._answers:
            self._answers.move_to_end(asked)
            return self._answers[asked]
        answer = self.evm.call(call, header=header, state_root=block.state_root)
        if max(len(answer), len(call.data)) <= _LONGEST_KEPT:
            self._answers[asked] = answer
        if len(self._answers) > _MOST_KEPT:
            self._answers.popitem(last=False)
        return answer

    def estimate(self, call: UnsignedCall) -> int:
        """Gas for a transaction in the next block."""
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
