"""Receipts and event logs, parsed from the JSON of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from protocol.identifiers import Address, Digest, address, digest

StoredBytes = Annotated[
    bytes,
    PlainSerializer(bytes.hex, return_type=str, when_used="json"),
    BeforeValidator(lambda value: bytes.fromhex(value) if isinstance(value, str) else value),
]
"""Bytes that are hex digits in JSON, because they need not be UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """One event on the chain.

    Args:
        address: The contract that emitted the event.
        topics: Up to four; the first identifies the event unless the event is anonymous.
        data: The parameters that are not indexed, ABI-encoded.
        block_number: Height of the block.
        block_hash: Hash of the block.
        transaction: Hash of the transaction that emitted the event.
        index: Index of the event in the block, over all transactions.
    """

    address: Address
    topics: tuple[Digest, ...]
    data: StoredBytes
    block_number: int
    block_hash: Digest
    transaction: Digest
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Receipt of a mined and successful transaction.

    Args:
        transaction: Hash of the transaction.
        block_number: Height of the block.
        block_hash: Hash of the block.
        gas_used: Gas units used.
        gas_price: Price paid per gas, in wei.
        created: Address of the created contract, if any.
        logs: Events of the transaction, in order.
    """

    transaction: Digest
    block_number: int
    block_hash: Digest
    gas_used: int
    gas_price: int
    created: Address | None
    logs: tuple[EventLog, ...]


def read_log(raw: Mapping[str, Any]) -> EventLog:
    """Parses a log."""
    return EventLog(
        address=address(raw["address"]),
        topics=tuple(digest(topic) for topic in raw["topics"]),
        data=bytes.fromhex(raw["data"][2:]),
        block_number=int(raw["blockNumber"], 16),
        block_hash=digest(raw["blockHash"]),
        transaction=digest(raw["transactionHash"]),
        index=int(raw["logIndex"], 16),
    )


def read_receipt(raw: Mapping[str, Any]) -> Receipt:
    """Parses a receipt."""
    created = raw.get("contractAddress")
    return Receipt(
        transaction=digest(raw["transactionHash"]),
        block_number=int(raw["blockNumber"], 16),
        block_hash=digest(raw["blockHash"]),
        gas_used=int(raw["gasUsed"], 16),
        gas_price=int(raw["effectiveGasPrice"], 16),
        created=address(created) if created else None,
        logs=tuple(read_log(log) for log in raw["logs"]),
    )
