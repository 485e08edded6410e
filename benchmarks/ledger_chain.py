"""Measures transactions per second and event latency on the embedded chain and on anvil, in one run.

    python -m benchmarks.ledger_chain [--transactions 200] [--events 40] [--block-time 0.5]

Each figure includes the whole client: estimate, fees, signing, sending, receipts and cursor. There are three cases per
chain: one transaction after the other, many at once with a block for each, and many with blocks at fixed intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

from eth_account import Account
from web3 import AsyncWeb3

from benchmarks.ending import end_in_order
from ledger.devchain import ChainKind, ChainProcess, start_chain
from ledger.errors import AnvilMissing
from ledger.events.cursor import EventCursor
from ledger.events.cursor_stores import MemoryCursorStore
from ledger.events.source import Web3Events
from ledger.rpc.connection import ChainConnection, connect
from ledger.transactions.sender import SendPolicy, TransactionCall, TransactionSender
from protocol.identifiers import Address

# A contract of 7 bytes that emits its call data: CALLDATACOPY it to memory, LOG0.
_EMITTER = bytes.fromhex("365f5f37365fa000")
_CREATION = bytes.fromhex("6008600b5f3960085ff3") + b"\x00" + _EMITTER
_SOON = timedelta(seconds=120)
_POLL = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one chain."""

    kind: ChainKind
    one_by_one: float
    pipelined: float
    on_time: float
    latency_ms: list[float]
    on_time_latency_ms: list[float]


async def measure(kind: ChainKind, *, transactions: int, events: int, block_time: timedelta) -> Figures:
    """Measures every case on one kind of chain."""
    async with start_chain(kind) as chain:
        bench = await _Bench.open(chain)
        one_by_one = await bench.rate(transactions // 2, at_once=False)
        pipelined = await bench.rate(transactions, at_once=True)
        latency = await bench.latency(events)
        await bench.close()
    async with start_chain(kind, block_time=block_time) as chain:
        bench = await _Bench.open(chain)
        on_time = await bench.rate(transactions * 2, at_once=True)
        on_time_latency = await bench.latency(events)
        await bench.close()
    return Figures(
        kind=kind,
        one_by_one=one_by_one,
        pipelined=pipelined,
        on_time=on_time,
        latency_ms=latency,
        on_time_latency_ms=on_time_latency,
    )


class _Bench:
    def __init__(self, web3: AsyncWeb3[ChainConnection], sender: TransactionSender, contract: Address) -> None:
        self.web3 = web3
        self.sender = sender
        self.contract = contract

    @classmethod
    async def open(cls, chain: ChainProcess) -> _Bench:
        web3 = await connect(chain.url, expected_chain_id=chain.chain_id)
        account = Account.from_key(chain.accounts[0].key)
        sender = TransactionSender(web3, account, chain_id=chain.chain_id, policy=SendPolicy(poll=_POLL))
        receipt = await sender.send(TransactionCall(to=None, data=_CREATION, gas=200_000), deadline=_SOON)
        if receipt.created is None:
            raise RuntimeError("the contract was not made")
        return cls(web3, sender, receipt.created)

    async def close(self) -> None:
        await self.sender.close()
        await self.web3.provider.disconnect()

    async def rate(self, count: int, *, at_once: bool) -> float:
        """Returns transactions per second, from the first call to the last receipt."""
        calls = [TransactionCall(to=self.contract, data=number.to_bytes(32, "big")) for number in range(count)]
        started = time.perf_counter()
        if at_once:
            await asyncio.gather(*(self.sender.send(call, deadline=_SOON) for call in calls))
        else:
            for call in calls:
                await self.sender.send(call, deadline=_SOON)
        return count / (time.perf_counter() - started)

    async def latency(self, count: int) -> list[float]:
        """Returns the milliseconds from calling `send` until a cursor yields the event, one at a time."""
        source = Web3Events(self.web3, addresses=[self.contract])
        head = await self.web3.eth.block_number
        cursor = EventCursor(source, name="bench", store=MemoryCursorStore(), start_block=head + 1, poll=_POLL)
        following = cursor.follow()
        milliseconds = []
        for number in range(count):
            data = number.to_bytes(32, "big")
            next_batch = asyncio.ensure_future(anext(following))
            started = time.perf_counter()
            sending = asyncio.create_task(
                self.sender.send(TransactionCall(to=self.contract, data=data), deadline=_SOON)
            )
            batch = await next_batch
            milliseconds.append((time.perf_counter() - started) * 1000)
            await cursor.commit(batch)
            await sending
        return milliseconds


def _line(figures: Figures) -> str:
    cells = [
        f"{figures.kind:<10}",
        f"{figures.one_by_one:8.0f}",
        f"{figures.pipelined:8.0f}",
        f"{figures.on_time:8.0f}",
    ]
    for sample in (figures.latency_ms, figures.on_time_latency_ms):
        cells += [f"{statistics.median(sample):8.1f}", f"{statistics.quantiles(sample, n=20)[-1]:8.1f}"]
    return " ".join(cells)


async def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=200)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--block-time", type=float, default=0.5)
    options = parser.parse_args()
    block_time = timedelta(seconds=options.block_time)
    print(f"transactions per second; event latency in ms (median, 95 %); blocks on time: every {options.block_time} s")
    print(
        f"{'chain':<10} {'1 by 1':>8} {'at once':>8} {'on time':>8} {'event':>8} {'p95':>8} {'on time':>8} {'p95':>8}"
    )
    for kind in ChainKind:
        try:
            figures = await measure(
                kind, transactions=options.transactions, events=options.events, block_time=block_time
            )
        except AnvilMissing as missing:
            print(f"{kind}: {missing.detail}")
            continue
        print(_line(figures), flush=True)
    return 0


if __name__ == "__main__":
    end_in_order()
    sys.exit(asyncio.run(main()))
