"""Executes transactions with py-evm under the rules of the Prague fork: builds blocks, runs calls, estimates gas.

It differs from a real network in two ways. A block may have its parent's timestamp, because blocks come faster than
once a second and chain time must not run ahead of the system clock. All tips go to the zero address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import rlp
from eth.abc import ComputationAPI, StateAPI
from eth.consensus.context import ConsensusContext
from eth.constants import EMPTY_SHA256
from eth.db.chain import ChainDB
from eth.db.trie import make_trie_root_and_nodes
from eth.exceptions import Revert
from eth.vm.chain_context import ChainContext
from eth.vm.forks.london.transactions import UnsignedDynamicFeeTransaction
from eth.vm.forks.prague import PragueVM
from eth.vm.forks.prague.blocks import PragueBlockHeader
from eth.vm.forks.prague.headers import create_prague_header_from_parent
from eth.vm.spoof import SpoofTransaction
from eth_abi.exceptions import DecodingError
from eth_typing import Address as EvmAddress
from eth_typing import BlockNumber
from eth_utils.exceptions import ValidationError

from ledger.devchain.embedded.errors import EXECUTION_REVERTED, RpcError
from ledger.devchain.embedded.records import BlockRecord, LogRecord, MinedBlock, PendingTransaction, TransactionRecord
from ledger.devchain.embedded.store import ChainStore
from ledger.devchain.embedded.trie import trie_database
from ledger.rpc.abi_decoding import decode
from protocol.runtime.randomness import token_bytes

BLOCK_GAS_LIMIT = 30_000_000
INITIAL_BASE_FEE = 10**9
_ZERO_ADDRESS = b"\x00" * 20
_LEAST_GAS = 21_000
_CALL_KEEPS_SHARE = 64  # EIP-150: a call passes on at most all but 1/64 of its gas
_CALL_STIPEND = 2300
_FLOOR_PER_TOKEN = 10  # EIP-7623: minimum gas per token of call data
_TOKENS_PER_BYTE = 4  # EIP-7623: tokens of a nonzero byte; a zero byte counts as one token
_ERROR_STRING = bytes.fromhex("08c379a0")
_PANIC = bytes.fromhex("4e487b71")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsignedCall:
    """An unsigned transaction, for `eth_call` and `eth_estimateGas`."""

    sender: bytes = _ZERO_ADDRESS
    to: bytes = b""
    data: bytes = b""
    value: int = 0
    gas: int = BLOCK_GAS_LIMIT


class Refused(Exception):
    """The transaction can't be included in this block."""


class _DevelopmentVM(PragueVM):
    """py-evm's Prague VM, with block hashes read from our store instead of py-evm's chain database."""

    ancestors: Iterable[bytes] = ()

    @property
    def previous_hashes(self) -> Iterable[Any]:
        return self.ancestors


class Evm:
    """Executes transactions and calls on the state in a store."""

    def __init__(self, store: ChainStore, *, chain_id: int) -> None:
        self._store = store
        self._database = trie_database(store.nodes)
        self._chaindb = ChainDB(self._database)
        self._context = ChainContext(chain_id)
        self._chain_id = chain_id

    def genesis(self, *, balances: Mapping[bytes, int], timestamp: int) -> MinedBlock:
        """Builds the genesis block with the given balances in wei."""
        empty = PragueBlockHeader(
            difficulty=0,
            block_number=BlockNumber(0),
            gas_limit=BLOCK_GAS_LIMIT,
            timestamp=timestamp,
            base_fee_per_gas=INITIAL_BASE_FEE,
        )
        state = self._vm(empty).state
        for account, balance in balances.items():
            state.set_balance(EvmAddress(account), balance)
        state.persist()
        header = _with(empty, state_root=state.state_root)
        return MinedBlock(block=_record(header, ()), transactions=(), logs=())

    def next_header(self, parent: BlockRecord, *, timestamp: int) -> PragueBlockHeader:
        """Returns the header of an empty block on top of `parent`."""
        header = create_prague_header_from_parent()(
            parent.header,
            timestamp=parent.header.timestamp + 1,  # py-evm demands a later timestamp; `_with` below replaces it
            gas_limit=BLOCK_GAS_LIMIT,
            coinbase=_ZERO_ADDRESS,
            mix_hash=token_bytes(32),
        )
        return _with(header, timestamp=timestamp, state_root=parent.state_root)

    def builder(self, parent: BlockRecord, *, timestamp: int) -> BlockBuilder:
        """Starts a block on top of `parent`."""
        header = self.next_header(parent, timestamp=timestamp)
        return BlockBuilder(self._vm(header), header)

    def state_at(self, block: BlockRecord) -> StateAPI:
        """Returns the state after a block; callers must not modify it. The last four states are cached."""
        return self._reader(block.header, block.state_root)

    @lru_cache(maxsize=4)  # noqa: B019 - the object lives as long as the process
    def _reader(self, header: PragueBlockHeader, state_root: bytes) -> StateAPI:
        return self._vm(_with(header, state_root=state_root)).state

    def with_balance(self, block: BlockRecord, account: bytes, balance: int) -> bytes:
        """Returns the root of the block's state with one balance changed."""
        state = self._vm(_with(block.header, state_root=block.state_root)).state
        state.set_balance(EvmAddress(account), balance)
        state.persist()
        return bytes(state.state_root)

    def call(self, call: UnsignedCall, *, header: PragueBlockHeader, state_root: bytes) -> bytes:
        """Runs a call in the context of `header` and returns its output.

        Raises:
            RpcError: The call reverted (code 3, with the revert data) or failed otherwise.
        """
        computation = self._run(call, header=header, state_root=state_root)
        if computation.is_error:
            raise failure(computation)
        return bytes(computation.output)

    def estimate(self, call: UnsignedCall, *, header: PragueBlockHeader, state_root: bytes) -> int:
        """Returns a gas limit with which the call succeeds, from a single run.

        Each nested call may use at most 63/64 of its caller's gas (EIP-150). With a limit of `used · (64/63)^depth`
        every nested call gets at least the gas that it used in this run. (A contract that branches on `gasleft()` may
        need more gas.) Other Ethereum nodes find the limit by a binary search, which needs many runs.

        Raises:
            RpcError: The call fails with the highest allowed limit. If it reverted, the error contains the revert data.
        """
        found = self._run(call, header=header, state_root=state_root)
        if found.is_error:
            raise failure(found)
        used, depth = call.gas - found.get_gas_remaining(), _depth(found)
        if not depth and used <= _LEAST_GAS:  # a transfer makes no nested call
            return _LEAST_GAS
        enough, kept = used + _CALL_STIPEND, _CALL_KEEPS_SHARE
        for _ in range(depth):
            enough = -(-enough * kept // (kept - 1))
        return min(call.gas, max(enough, floor_gas(call.data)))

    def _run(self, call: UnsignedCall, *, header: PragueBlockHeader, state_root: bytes) -> ComputationAPI:
        state = self._call_state(header, state_root)
        before = state.snapshot()
        try:
            return self._applied(call, state)
        finally:
            state.revert(before)

    @lru_cache(maxsize=4)  # noqa: B019 - the object lives as long as the process
    def _call_state(self, header: PragueBlockHeader, state_root: bytes) -> StateAPI:
        """Returns a state on which calls run; `_run` undoes the changes of each call.

        The state is cached, so a call need not read again the values that earlier calls have read.
        """
        return self._vm(_with(header, state_root=state_root, base_fee_per_gas=0)).state

    def _applied(self, call: UnsignedCall, state: StateAPI) -> ComputationAPI:
        if state.get_balance(EvmAddress(call.sender)) < call.value:
            raise RpcError(f"insufficient funds for transfer: address 0x{call.sender.hex()}")
        unsigned = UnsignedDynamicFeeTransaction(
            chain_id=self._chain_id,
            nonce=state.get_nonce(EvmAddress(call.sender)),
            max_priority_fee_per_gas=0,
            max_fee_per_gas=0,
            gas=call.gas,
            to=call.to,
            value=call.value,
            data=call.data,
            access_list=(),
        )
        if call.gas < unsigned.intrinsic_gas:
            raise RpcError(f"intrinsic gas too low: have {call.gas}, want {unsigned.intrinsic_gas}")
        try:
            return state.apply_transaction(SpoofTransaction(unsigned, from_=call.sender))  # type: ignore[arg-type] # py-evm's own way to call
        except ValidationError as error:
            raise RpcError(str(error)) from error

    def _vm(self, header: PragueBlockHeader) -> _DevelopmentVM:
        vm = _DevelopmentVM(header, self._chaindb, self._context, ConsensusContext(self._database))
        vm.ancestors = self._ancestors(int(header.block_number))
        return vm

    def _ancestors(self, number: int) -> Iterator[bytes]:
        yield from self._store.hashes_before(number)  # a generator delays the query: few transactions need the hashes


class BlockBuilder:
    """Builds a block from transactions until it is sealed."""

    def __init__(self, vm: _DevelopmentVM, header: PragueBlockHeader) -> None:
        self._vm = vm
        self._header = header
        self._taken: list[tuple[PendingTransaction, ComputationAPI, Any]] = []

    @property
    def base_fee(self) -> int:
        """Base fee of the block, in wei per gas."""
        return int(self._header.base_fee_per_gas or 0)

    @property
    def gas_left(self) -> int:
        """Unused gas of the block."""
        return int(self._header.gas_limit - self._header.gas_used)

    def nonce_of(self, sender: bytes) -> int:
        """Returns a sender's nonce after the transactions so far."""
        return int(self._vm.state.get_nonce(EvmAddress(sender)))

    def take(self, pending: PendingTransaction) -> None:
        """Executes a transaction as the next one of the block.

        Raises:
            Refused: The transaction is invalid in this block, for instance because its sender can't pay.
        """
        try:
            receipt, computation = self._vm.apply_transaction(self._header, pending.transaction)
        except ValidationError as error:
            raise Refused(str(error)) from error
        self._header = cast("PragueBlockHeader", self._vm.add_receipt_to_header(self._header, receipt))
        self._taken.append((pending, computation, receipt))

    def seal(self) -> MinedBlock:
        """Finishes the block: computes the state root and the header's hash."""
        self._vm.state.persist()
        transactions_root, _ = make_trie_root_and_nodes([pending.transaction for pending, _, _ in self._taken])
        receipts_root, _ = make_trie_root_and_nodes([receipt for _, _, receipt in self._taken])
        header = _with(
            self._header,
            transaction_root=transactions_root, receipt_root=receipts_root, state_root=self._vm.state.state_root,
            requests_hash=EMPTY_SHA256,
        )  # fmt: skip
        block = _record(header, tuple(pending.raw for pending, _, _ in self._taken))
        transactions: list[TransactionRecord] = []
        logs: list[LogRecord] = []
        before = 0
        for position, (pending, computation, receipt) in enumerate(self._taken):
            mined = _mined(block, position, pending, computation, cumulative=receipt.gas_used, before=before)
            before = mined.cumulative_gas
            transactions.append(mined)
            logs.extend(_logs(block, mined, receipt.logs, first=len(logs)))
        return MinedBlock(block=block, transactions=tuple(transactions), logs=tuple(logs))


def failure(computation: ComputationAPI) -> RpcError:
    """Returns the error of a failed call, with go-ethereum's message.

    If the call reverted, the error contains the revert data.
    """
    error = computation.error
    if not isinstance(error, Revert):
        return RpcError(f"execution failed: {type(error).__name__}: {error}"[:300])
    data = bytes(computation.output)
    reason = _reason(data)
    return RpcError(
        f"execution reverted: {reason}" if reason else "execution reverted",
        code=EXECUTION_REVERTED,
        data="0x" + data.hex(),
    )


def _reason(data: bytes) -> str:
    try:
        if data[:4] == _ERROR_STRING:
            return str(decode(["string"], data[4:])[0])
        if data[:4] == _PANIC:
            return f"panic: code {decode(['uint256'], data[4:])[0]:#x}"
    except DecodingError:
        pass
    return ""


def floor_gas(data: bytes) -> int:
    """Returns the minimum gas of a transaction with this data (EIP-7623)."""
    return _LEAST_GAS + _FLOOR_PER_TOKEN * (data.count(0) + _TOKENS_PER_BYTE * (len(data) - data.count(0)))


def _depth(computation: ComputationAPI) -> int:
    """Returns the greatest nesting depth of calls."""
    return max((1 + _depth(child) for child in computation.children), default=0)


def _with(header: PragueBlockHeader, **fields: object) -> PragueBlockHeader:
    return cast("PragueBlockHeader", header.copy(**fields))


def _record(header: PragueBlockHeader, raw: tuple[bytes, ...]) -> BlockRecord:
    size = len(rlp.encode(header)) + sum(len(transaction) + 3 for transaction in raw) + 3
    return BlockRecord(header=header, state_root=bytes(header.state_root), size=size)


def _mined(
    block: BlockRecord,
    position: int,
    pending: PendingTransaction,
    computation: ComputationAPI,
    *,
    cumulative: int,
    before: int,
) -> TransactionRecord:
    transaction = pending.transaction
    base_fee = block.base_fee
    created = bytes(computation.msg.storage_address) if transaction.to == b"" else None
    return TransactionRecord(
        hash=pending.hash,
        block=block.number,
        block_hash=block.hash,
        position=position,
        raw=pending.raw,
        sender=pending.sender,
        success=not computation.is_error,
        gas_used=cumulative - before,
        cumulative_gas=cumulative,
        gas_price=int(min(transaction.max_fee_per_gas, transaction.max_priority_fee_per_gas + base_fee)),
        created=created,
    )


def _logs(block: BlockRecord, mined: TransactionRecord, logs: Iterable[Any], *, first: int) -> Iterator[LogRecord]:
    for offset, log in enumerate(logs):
        yield LogRecord(
            block=block.number,
            block_hash=block.hash,
            position=first + offset,
            transaction=mined.hash,
            transaction_position=mined.position,
            address=bytes(log.address),
            topics=tuple(int(topic).to_bytes(32, "big") for topic in log.topics),
            data=bytes(log.data),
        )
