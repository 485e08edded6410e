"""The chain queries of an event cursor: block headers, and events of a block range or of one block."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from web3 import AsyncWeb3
from web3.types import RPCEndpoint

from ledger.errors import ChainRefused, ChainUnavailable
from ledger.events.cursor_position import BlockRef
from ledger.rpc.connection import ChainConnection
from ledger.transactions.receipts import EventLog
from protocol.identifiers import Address, Digest, address, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header fields that a cursor needs.

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
        """A digest of the event filter; it changes when the filter does."""
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
        """Returns the events of one block, in order; None if the node does not have it (any more).

        Raises:
            AnswerTooBig: The block has more events than the node returns.
        """
        ...


class Web3Events:
    """Reads the events of given contracts over JSON-RPC.

    Services poll it several times a second. It parses responses itself: web3 takes twice the time, because it also
    converts fields that the cursor does not use.

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
        found = await self._block("latest")
        if found is None:
            raise ChainUnavailable(f"{self._chain.shown_url} has no newest block")
        return found

    async def header(self, number: int) -> Header | None:
        """Returns the header at a height; None above the newest block."""
        return await self._block(hex(number))

    async def logs(self, first: int, last: int) -> Sequence[EventLog]:
        """Returns the events of a block range."""
        return await self._logs({"fromBlock": hex(first), "toBlock": hex(last)})

    async def logs_of(self, block: Digest) -> Sequence[EventLog] | None:
        """Returns the events of one block (EIP-234)."""
        try:
            return await self._logs({"blockHash": block})
        except ChainRefused:
            return None

    async def _block(self, which: str) -> Header | None:
        raw = await self._ask("eth_getBlockByNumber", [which, False])
        if raw is None:
            return None
        return Header(
            ref=BlockRef(number=int(raw["number"], 16), hash=_digest(raw["hash"])),
            parent=_digest(raw["parentHash"]),
            time=int(raw["timestamp"], 16),
            empty=not raw["transactions"],
        )

    async def _logs(self, where: Mapping[str, str]) -> list[EventLog]:
        return [_log(raw) for raw in await self._ask("eth_getLogs", [{**self._filter, **where}])]

    async def _ask(self, method: str, parameters: list[Any]) -> Any:  # noqa: ANN401 - as the method has it
        return (await self._chain.make_request(RPCEndpoint(method), parameters))["result"]


def _digest(text: str) -> Digest:
    return digest(bytes.fromhex(text[2:]))


def _log(raw: Mapping[str, Any]) -> EventLog:
    return EventLog(
        address=address(raw["address"]),
        topics=tuple(_digest(topic) for topic in raw["topics"]),
        data=bytes.fromhex(raw["data"][2:]),
        block_number=int(raw["blockNumber"], 16),
        block_hash=_digest(raw["blockHash"]),
        transaction=_digest(raw["transactionHash"]),
        index=int(raw["logIndex"], 16),
    )
