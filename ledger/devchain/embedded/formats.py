"""JSON-RPC representation of blocks, transactions, receipts and events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eth.abc import SignedTransactionAPI
from eth.vm.forks.prague import PragueVM
from eth_bloom.bloom import BloomFilter
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from ledger.devchain.embedded.records import BlockRecord, LogRecord, TransactionRecord

_BLOOM_BYTES = 256


def hexed(data: bytes) -> str:
    """Returns bytes as 0x-prefixed hex."""
    return "0x" + data.hex()


def block_json(block: BlockRecord, transactions: list[TransactionRecord], *, full: bool) -> dict[str, Any]:
    """Returns a block with its transactions, in full or as hashes."""
    header = block.header
    return {
        "number": hex(block.number),
        "hash": hexed(block.hash),
        "parentHash": hexed(header.parent_hash),
        "nonce": hexed(header.nonce),
        "sha3Uncles": hexed(header.uncles_hash),
        "logsBloom": hexed(int(header.bloom).to_bytes(_BLOOM_BYTES, "big")),
        "transactionsRoot": hexed(header.transaction_root),
        "stateRoot": hexed(header.state_root),
        "receiptsRoot": hexed(header.receipt_root),
        "miner": to_checksum_address(header.coinbase),
        "difficulty": hex(header.difficulty),
        "totalDifficulty": "0x0",
        "extraData": hexed(header.extra_data),
        "mixHash": hexed(header.mix_hash),
        "size": hex(block.size),
        "gasLimit": hex(header.gas_limit),
        "gasUsed": hex(header.gas_used),
        "timestamp": hex(header.timestamp),
        "baseFeePerGas": hex(block.base_fee),
        "withdrawalsRoot": hexed(bytes(header.withdrawals_root or b"")),
        "withdrawals": [],
        "blobGasUsed": hex(header.blob_gas_used),
        "excessBlobGas": hex(header.excess_blob_gas),
        "parentBeaconBlockRoot": hexed(bytes(header.parent_beacon_block_root or b"")),
        "requestsHash": hexed(header.requests_hash),
        "uncles": [],
        "transactions": [mined_json(record) if full else hexed(record.hash) for record in transactions],
    }


def mined_json(record: TransactionRecord) -> dict[str, Any]:
    """Returns a mined transaction."""
    transaction = PragueVM.get_transaction_builder().decode(record.raw)
    return {
        **_signed_json(transaction, sender=record.sender),
        "blockHash": hexed(record.block_hash),
        "blockNumber": hex(record.block),
        "transactionIndex": hex(record.position),
        "gasPrice": hex(record.gas_price),
    }


def pending_json(transaction: SignedTransactionAPI, *, sender: bytes) -> dict[str, Any]:
    """Returns a pending transaction."""
    return {
        **_signed_json(transaction, sender=sender),
        "blockHash": None,
        "blockNumber": None,
        "transactionIndex": None,
        "gasPrice": hex(transaction.max_fee_per_gas),
    }


def receipt_json(record: TransactionRecord, logs: list[LogRecord], *, type_id: int, to: bytes) -> dict[str, Any]:
    """Returns the receipt of a mined transaction."""
    return {
        "transactionHash": hexed(record.hash),
        "transactionIndex": hex(record.position),
        "blockHash": hexed(record.block_hash),
        "blockNumber": hex(record.block),
        "from": to_checksum_address(record.sender),
        "to": to_checksum_address(to) if to else None,
        "contractAddress": to_checksum_address(record.created) if record.created else None,
        "status": hex(record.success),
        "gasUsed": hex(record.gas_used),
        "cumulativeGasUsed": hex(record.cumulative_gas),
        "effectiveGasPrice": hex(record.gas_price),
        "type": hex(type_id),
        "logsBloom": hexed(_bloom(logs)),
        "logs": [log_json(log) for log in logs],
    }


def log_json(log: LogRecord) -> dict[str, Any]:
    """Returns an event."""
    return {
        "address": to_checksum_address(log.address),
        "topics": [hexed(topic) for topic in log.topics],
        "data": hexed(log.data),
        "blockNumber": hex(log.block),
        "blockHash": hexed(log.block_hash),
        "transactionHash": hexed(log.transaction),
        "transactionIndex": hex(log.transaction_position),
        "logIndex": hex(log.position),
        "removed": False,
    }


def transaction_type(raw: bytes) -> int:
    """Returns the EIP-2718 type of an encoded transaction, 0 for a legacy one."""
    return raw[0] if raw[0] < 0xC0 else 0


def recipient(raw: bytes) -> bytes:
    """Returns the recipient of an encoded transaction; empty if it creates a contract."""
    return bytes(PragueVM.get_transaction_builder().decode(raw).to)


def _signed_json(transaction: SignedTransactionAPI, *, sender: bytes) -> dict[str, Any]:
    type_id = transaction.type_id or 0
    fields: dict[str, Any] = {
        "hash": hexed(transaction.hash),
        "type": hex(type_id),
        "nonce": hex(transaction.nonce),
        "from": to_checksum_address(sender),
        "to": to_checksum_address(transaction.to) if transaction.to else None,
        "value": hex(transaction.value),
        "gas": hex(transaction.gas),
        "input": hexed(transaction.data),
        "r": hex(transaction.r),
        "s": hex(transaction.s),
        "v": hex(transaction.y_parity if type_id else transaction.v),  # type: ignore[attr-defined] # legacy ones have v
    }
    if transaction.chain_id is not None:
        fields["chainId"] = hex(transaction.chain_id)
    if type_id:
        fields["yParity"] = hex(transaction.y_parity)
        fields["accessList"] = [
            {
                "address": to_checksum_address(account),
                "storageKeys": [hexed(slot.to_bytes(32, "big")) for slot in slots],
            }
            for account, slots in transaction.access_list
        ]
    if type_id == 2:
        fields["maxFeePerGas"] = hex(transaction.max_fee_per_gas)
        fields["maxPriorityFeePerGas"] = hex(transaction.max_priority_fee_per_gas)
    return fields


def _bloom(logs: Iterable[LogRecord]) -> bytes:
    bloom = BloomFilter()
    for log in logs:
        bloom.extend([log.address, *log.topics])
    return int(bloom).to_bytes(_BLOOM_BYTES, "big")


def client_version() -> str:
    """Returns the result of `web3_clientVersion`."""
    return "muster-embedded-chain/1"


def sha3(data: bytes) -> str:
    """Returns the result of `web3_sha3`: Keccak-256."""
    return hexed(keccak(data))
