"""The JSON-RPC methods: one function per method, from parameters to the JSON result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from eth_typing import Address as EvmAddress

from ledger.devchain.embedded import formats, params
from ledger.devchain.embedded.errors import LIMIT_EXCEEDED, RpcError, invalid
from ledger.devchain.embedded.formats import hexed
from ledger.devchain.embedded.node import EmbeddedChain
from ledger.devchain.embedded.records import BlockRecord, LogFilter

Method = Callable[[EmbeddedChain, list[object]], Awaitable[Any]]

MAX_LOGS = 10_000
"""Maximum events per query. As on public nodes, a query with more events fails with code -32005, so that tests cover
clients that split their ranges."""

_SUGGESTED_TIP = 10**9
_MAX_FEE_HISTORY = 1024
_MAX_MINED_AT_ONCE = 1_000

METHODS: dict[str, Method] = {}


def _method(name: str) -> Callable[[Method], Method]:
    def register(function: Method) -> Method:
        METHODS[name] = function
        return function

    return register


# The chain itself


@_method("eth_chainId")
async def _chain_id(node: EmbeddedChain, _: list[object]) -> str:
    return hex(node.chain_id)


@_method("net_version")
async def _net_version(node: EmbeddedChain, _: list[object]) -> str:
    return str(node.chain_id)


@_method("web3_clientVersion")
async def _client_version(_: EmbeddedChain, __: list[object]) -> str:
    return formats.client_version()


@_method("web3_sha3")
async def _sha3(_: EmbeddedChain, given: list[object]) -> str:
    return formats.sha3(params.data(params.at(given, 0, what="data")))


@_method("eth_syncing")
async def _syncing(_: EmbeddedChain, __: list[object]) -> bool:
    return False


@_method("eth_accounts")
async def _accounts(_: EmbeddedChain, __: list[object]) -> list[str]:
    return []  # the chain holds no keys and signs nothing


@_method("eth_blockNumber")
async def _block_number(node: EmbeddedChain, _: list[object]) -> str:
    return hex(node.head.number)


# Blocks and transactions


@_method("eth_getBlockByNumber")
async def _block_by_number(node: EmbeddedChain, given: list[object]) -> dict[str, Any] | None:
    tag = params.block_tag(params.at(given, 0, what="block"))
    if isinstance(tag, bytes):
        raise invalid("a block number is required")
    return _block_json(node, _find(node, tag), full=bool(params.optional(given, 1)))


@_method("eth_getBlockByHash")
async def _block_by_hash(node: EmbeddedChain, given: list[object]) -> dict[str, Any] | None:
    block_hash = params.data(params.at(given, 0, what="hash"), size=32)
    return _block_json(node, node.store.block_by_hash(block_hash), full=bool(params.optional(given, 1)))


@_method("eth_getTransactionByHash")
async def _transaction(node: EmbeddedChain, given: list[object]) -> dict[str, Any] | None:
    wanted = params.data(params.at(given, 0, what="hash"), size=32)
    mined = node.store.transaction(wanted)
    if mined is not None:
        return formats.mined_json(mined)
    pending = node.pool.get(wanted)
    return None if pending is None else formats.pending_json(pending.transaction, sender=pending.sender)


@_method("eth_getTransactionReceipt")
async def _receipt(node: EmbeddedChain, given: list[object]) -> dict[str, Any] | None:
    record = node.store.transaction(params.data(params.at(given, 0, what="hash"), size=32))
    if record is None:
        return None
    to = formats.recipient(record.raw)
    logs = node.store.logs_of(record.hash)
    return formats.receipt_json(record, logs, type_id=formats.transaction_type(record.raw), to=to)


@_method("eth_getLogs")
async def _logs(node: EmbeddedChain, given: list[object]) -> list[dict[str, Any]]:
    wanted = params.at(given, 0, what="filter")
    if not isinstance(wanted, dict):
        raise invalid("a filter must be an object")
    if "blockHash" in wanted:
        block = _existing(node, params.data(wanted["blockHash"], size=32))
        first = last = block.number
    else:
        first = _height(node, wanted.get("fromBlock"))
        last = _height(node, wanted.get("toBlock"))
    search = LogFilter(
        first=first,
        last=last,
        addresses=params.addresses(wanted.get("address")),
        topics=params.topics(wanted.get("topics")),
    )
    found = node.store.logs(search, limit=MAX_LOGS + 1)
    if len(found) > MAX_LOGS:
        raise RpcError(f"query returned more than {MAX_LOGS} results", code=LIMIT_EXCEEDED)
    return [formats.log_json(log) for log in found]


@_method("eth_sendRawTransaction")
async def _send(node: EmbeddedChain, given: list[object]) -> str:
    return hexed(await node.submit(params.data(params.at(given, 0, what="transaction"))))


# State


@_method("eth_getTransactionCount")
async def _count(node: EmbeddedChain, given: list[object]) -> str:
    account = params.account(params.at(given, 0, what="address"))
    tag = params.block_tag(params.optional(given, 1))
    nonce = int(node.state(_existing(node, tag)).get_nonce(EvmAddress(account)))
    return hex(node.pool.next_nonce(account, mined=nonce) if tag == "pending" else nonce)


@_method("eth_getBalance")
async def _balance(node: EmbeddedChain, given: list[object]) -> str:
    account = params.account(params.at(given, 0, what="address"))
    block = _existing(node, params.block_tag(params.optional(given, 1)))
    return hex(node.state(block).get_balance(EvmAddress(account)))


@_method("eth_getCode")
async def _code(node: EmbeddedChain, given: list[object]) -> str:
    account = params.account(params.at(given, 0, what="address"))
    block = _existing(node, params.block_tag(params.optional(given, 1)))
    return hexed(node.state(block).get_code(EvmAddress(account)))


@_method("eth_getStorageAt")
async def _storage(node: EmbeddedChain, given: list[object]) -> str:
    account = params.account(params.at(given, 0, what="address"))
    slot = params.quantity(params.at(given, 1, what="slot"), what="a slot")
    block = _existing(node, params.block_tag(params.optional(given, 2)))
    return hexed(int(node.state(block).get_storage(EvmAddress(account), slot)).to_bytes(32, "big"))


@_method("eth_call")
async def _call(node: EmbeddedChain, given: list[object]) -> str:
    call = params.call(params.at(given, 0, what="call"))
    tag = params.block_tag(params.optional(given, 1))
    return hexed(node.call(call, None if tag == "pending" else _existing(node, tag)))


@_method("eth_estimateGas")
async def _estimate(node: EmbeddedChain, given: list[object]) -> str:
    return hex(node.estimate(params.call(params.at(given, 0, what="call"))))


# Fees


@_method("eth_gasPrice")
async def _gas_price(node: EmbeddedChain, _: list[object]) -> str:
    return hex(node.head.base_fee + _SUGGESTED_TIP)


@_method("eth_maxPriorityFeePerGas")
async def _tip(_: EmbeddedChain, __: list[object]) -> str:
    return hex(_SUGGESTED_TIP)


@_method("eth_feeHistory")
async def _fee_history(node: EmbeddedChain, given: list[object]) -> dict[str, Any]:
    count = min(params.quantity(params.at(given, 0, what="block count")), _MAX_FEE_HISTORY)
    newest = _existing(node, params.block_tag(params.optional(given, 1)))
    percentiles = params.optional(given, 2) or []
    if not isinstance(percentiles, list) or len(percentiles) > 100:
        raise invalid("reward percentiles must be a list of at most 100")
    first = max(0, newest.number - count + 1)
    blocks = [_existing(node, number) for number in range(first, newest.number + 1)]
    after = node.evm.next_header(newest, timestamp=int(newest.header.timestamp))
    return {
        "oldestBlock": hex(first),
        "baseFeePerGas": [hex(block.base_fee) for block in blocks] + [hex(int(after.base_fee_per_gas or 0))],
        "gasUsedRatio": [block.header.gas_used / block.header.gas_limit for block in blocks],
        "reward": [[hex(_SUGGESTED_TIP)] * len(percentiles) for _ in blocks],
    }


# Development controls, with the names of Hardhat and anvil


@_method("evm_snapshot")
async def _snapshot(node: EmbeddedChain, _: list[object]) -> str:
    return hex(node.snapshot())


@_method("evm_revert")
async def _revert(node: EmbeddedChain, given: list[object]) -> bool:
    return await node.revert(params.quantity(params.at(given, 0, what="snapshot")))


@_method("evm_increaseTime")
async def _increase_time(node: EmbeddedChain, given: list[object]) -> int:
    return node.increase_time(params.quantity(params.at(given, 0, what="seconds")))


@_method("evm_setNextBlockTimestamp")
async def _set_timestamp(node: EmbeddedChain, given: list[object]) -> None:
    node.set_next_timestamp(params.quantity(params.at(given, 0, what="timestamp")))


@_method("evm_mine")
async def _mine(node: EmbeddedChain, given: list[object]) -> str:
    options = params.optional(given, 0)
    timestamp = options.get("timestamp") if isinstance(options, dict) else options
    await node.mine(timestamp=None if timestamp is None else params.quantity(timestamp))
    return "0x0"


@_method("anvil_mine")
async def _mine_many(node: EmbeddedChain, given: list[object]) -> None:
    count = params.quantity(params.at(given, 0, what="count"))
    if count > _MAX_MINED_AT_ONCE:
        raise invalid(f"at most {_MAX_MINED_AT_ONCE} blocks at once")
    for _ in range(count):
        await node.mine()


@_method("anvil_setBalance")
async def _set_balance(node: EmbeddedChain, given: list[object]) -> None:
    account = params.account(params.at(given, 0, what="address"))
    await node.set_balance(account, params.quantity(params.at(given, 1, what="balance")))


METHODS["evm_setAccountBalance"] = _set_balance


# Finding blocks


def _find(node: EmbeddedChain, tag: str | int | bytes) -> BlockRecord | None:
    if isinstance(tag, bytes):
        return node.store.block_by_hash(tag)
    if tag == "earliest":
        return node.store.block(0)
    if isinstance(tag, str) or tag == node.head.number:
        return node.head
    return node.store.block(tag)


def _existing(node: EmbeddedChain, tag: str | int | bytes) -> BlockRecord:
    block = _find(node, tag)
    if block is None:
        raise RpcError(f"unknown block {hexed(tag) if isinstance(tag, bytes) else tag}")
    return block


def _height(node: EmbeddedChain, value: object) -> int:
    tag = params.block_tag(value)
    return tag if isinstance(tag, int) else _existing(node, tag).number


def _block_json(node: EmbeddedChain, block: BlockRecord | None, *, full: bool) -> dict[str, Any] | None:
    if block is None:
        return None
    return formats.block_json(block, node.store.transactions_of(block.number), full=full)
