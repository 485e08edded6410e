"""Measures the reader's CPU cost of a query to the ledger; `python -m benchmarks.ledger_reads`.

CPU milliseconds for one contract read and for one read of the newest block, with the ledger's client and with web3,
against a chain that answers at once with the same bytes. The node's own work is not included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from web3 import AsyncWeb3
from web3.types import RPCResponse

from benchmarks.ending import end_in_order
from ledger.artifacts import Contract, artifact
from ledger.client.view_calls import views_of
from ledger.events.source import Web3Events
from ledger.rpc.connection import ChainConnection
from protocol.identifiers import ZERO_ADDRESS

READS = 300
_WORD = "00" * 31 + "01"
_BLOCK = {
    **dict.fromkeys(
        ("hash", "parentHash", "stateRoot", "receiptsRoot", "transactionsRoot", "mixHash"), "0x" + "01" * 32
    ),
    **dict.fromkeys(("number", "timestamp", "gasUsed", "gasLimit", "size", "baseFeePerGas", "difficulty"), "0x1"),
    "miner": ZERO_ADDRESS,
    "extraData": "0x",
    "logsBloom": "0x" + "00" * 256,
    "nonce": "0x" + "00" * 8,
    "uncles": [],
    "transactions": [],
}


class Instant(ChainConnection):
    """A transport that answers at once."""

    async def _ask(self, method: str, body: bytes) -> RPCResponse:
        del body
        result: Any = _BLOCK if method == "eth_getBlockByNumber" else "0x" + _WORD * 40
        return {"jsonrpc": "2.0", "id": 1, "result": result}


async def cost(work: Callable[[], Awaitable[object]]) -> float:
    """Returns the CPU milliseconds of one query."""
    await work()
    began = time.process_time()
    for _ in range(READS):
        await work()
    return (time.process_time() - began) / READS * 1000


async def main() -> None:
    """Prints the table."""
    web3: AsyncWeb3[ChainConnection] = AsyncWeb3(Instant("http://127.0.0.1:1"))
    pools = artifact(Contract.COMPUTE_POOLS)
    theirs = web3.eth.contract(address=ZERO_ADDRESS, abi=list(pools.abi))
    view, events = views_of(pools)["termsOf"], Web3Events(web3, addresses=[ZERO_ADDRESS])

    async def read() -> object:
        asked = {"to": ZERO_ADDRESS, "data": view.call_data([1])}
        return view.answer((await web3.provider.make_request("eth_call", [asked, "latest"]))["result"])  # type: ignore[arg-type]

    rows = (
        ("terms of a pool", read, lambda: theirs.functions["termsOf"](1).call()),
        ("the newest block", events.tip, lambda: web3.eth.get_block("latest")),
    )
    print(f"{'CPU ms':<20} {'ours':>6} {'web3':>6}")
    for name, ours, web3s in rows:
        print(f"{name:<20} {await cost(ours):6.2f} {await cost(web3s):6.2f}")


if __name__ == "__main__":
    end_in_order()
    asyncio.run(main())
