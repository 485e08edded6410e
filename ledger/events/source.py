"""The chain queries of an event cursor: block headers, and events of a block range or of one block."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from web3 import AsyncWeb3

from ledger.errors import ChainRefused, ChainUnavailable
from ledger.events.cursor_position import BlockRef
from ledger.rpc.connection import ChainConnection
from ledger.transactions.receipts import EventLog, read_log
from protocol.identifiers import Address, Digest, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header fields that services need.

    Args:
        ref: Height and hash.
        parent: Hash of the parent block.
        time: Timestamp, Unix time in seconds.
        empty: The block has no transactions and therefore no events.
    """

    ref: BlockRef
    parent: Digest
    time: int
    empty: bool = False


class EventSource(Protocol):
    """Chain queries of an event cursor."""

    @property
    def identity(self) -> str:
        """Digest of the event filter: two filters have the same digest only if they are equal."""
        ...

    async def tip(self) -> Header:
        """Returns the header of the newest block."""
        ...

    async def header(self, number: int) -> Header | None:
        """Returns the header at a height; None above the newest block."""
        ...

    async def logs(self, first: int, last: int) -> Sequence[EventLog]:
        """Returns the events of a block range, both ends included, in order.

        Raises:
            AnswerTooBig: The node refuses the range; ask for fewer blocks.
        """
        ...

    async def logs_of(self, block: Digest) -> Sequence[EventLog] | None:
        """Returns the events of one block, in order; None if the node lacks the block.

        Raises:
            AnswerTooBig: The block has more events than the node returns.
        """
        ...


class Web3Events:
    """Reads the events of given contracts over JSON-RPC.

    Args:
        web3: From `ledger.rpc.connection.connect`.
        addresses: The contracts; at least one.
        topics: The accepted first topics; empty accepts every event.
    """

    def __init__(
        self, web3: AsyncWeb3[ChainConnection], *, addresses: Sequence[Address], topics: Sequence[Digest] = ()
    ) -> None:
        self._chain = web3.provider
        self._filter: dict[str, Any] = {"address": sorted(addresses)}
        if topics:
            self._filter["topics"] = [sorted(topics)]

    @property
    def identity(self) -> str:
        """Digest of contracts and topics."""
        return hashlib.sha256(repr(sorted(self._filter.items())).encode()).hexdigest()[:32]

    async def tip(self) -> Header:
        """Returns the header of the newest block."""
        found = await read_header(self._chain, "latest")
        if found is None:
            raise ChainUnavailable(f"{self._chain.shown_url} has no newest block")
        return found

    async def header(self, number: int) -> Header | None:
        """Returns the header at a height; None above the newest block."""
        return await read_header(self._chain, number)

    async def logs(self, first: int, last: int) -> Sequence[EventLog]:
        """Returns the events of a block range."""
        return await read_logs(self._chain, {**self._filter, "fromBlock": hex(first), "toBlock": hex(last)})

    async def logs_of(self, block: Digest) -> Sequence[EventLog] | None:
        """Returns the events of one block (EIP-234)."""
        try:
            return await read_logs(self._chain, {**self._filter, "blockHash": block})
        except ChainRefused:
            return None


async def read_header(chain: ChainConnection, block: int | Literal["latest"]) -> Header | None:
    """Returns a block's header; None if the chain has no such block (any more)."""
    raw = await chain.request("eth_getBlockByNumber", block if isinstance(block, str) else hex(block), False)
    if raw is None:
        return None
    return Header(
        ref=BlockRef(number=int(raw["number"], 16), hash=digest(raw["hash"])),
        parent=digest(raw["parentHash"]),
        time=int(raw["timestamp"], 16),
        empty=not raw["transactions"],
    )


async def read_logs(chain: ChainConnection, conditions: Mapping[str, object]) -> list[EventLog]:
    """Returns the logs that match a filter object of `eth_getLogs`, in order.

    Raises:
        AnswerTooBig: The node refuses the number of blocks or logs.
    """
    return [read_log(raw) for raw in await chain.request("eth_getLogs", conditions)]
