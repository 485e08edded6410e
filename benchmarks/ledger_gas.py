"""Prints gas per function of the contracts: `python -m benchmarks.ledger_gas [embedded|anvil]`.

Deploys on a fresh development chain and prints, for frequent operations, the gas of one call and of each item in a
batch of 50. The figures do not depend on the machine. A plain transfer of the token is listed for comparison.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

from benchmarks.ending import end_in_order
from ledger.devchain import ChainKind, start_chain
from tests.kit.contract_client import ZERO, Chain, Receipt
from tests.kit.contract_world import (
    ACCEPTED,
    DIGEST,
    DOMAINS,
    FORGED,
    MUSTER,
    POOLS,
    REGISTRY,
    REJECTED,
    SECRETS,
    SHA256,
    STAKE,
    TERMS,
    UNBONDING,
    WORK,
    World,
)

BATCH = 50


@dataclass(slots=True)
class Table:
    """Rows of operations, numbers of items and gas."""

    rows: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, what: str, receipt: Receipt, *, items: int = 1) -> Receipt:
        """Adds a row."""
        self.rows.append((what, items, receipt.gas))
        return receipt

    def show(self) -> None:
        """Prints all rows."""
        print(f"{'what':<36}{'gas':>12}{'per item':>12}")
        for what, items, gas in self.rows:
            share = f"{gas // items:,}" if items > 1 else ""
            print(f"{what:<36}{gas:>12,}{share:>12}")


def measure(url: str) -> Table:
    """Runs each operation on accounts that have already done it, because a first call also pays for new storage."""
    world, table = World(Chain(url)), Table()
    world.build()
    world.chain.send(STAKE, "stake", 800_000, sender=world.provider)
    world.finish(world.submit(index=900), ACCEPTED)
    disputed = world.submit(index=902)
    world.judge(disputed, outcome=REJECTED)
    world.dispute(disputed)
    world.chain.warp(TERMS["disputePeriod"])
    world.judge(disputed, by="validator2", outcome=REJECTED, decisive=True)
    world.finish(world.submit(index=901), FORGED)
    world.chain.warp(sum(TERMS[period] for period in ("judgePeriod", "challengePeriod", "disputePeriod")))
    world.join("node")
    _set_up(world, table)
    _work(world, table)
    return table


def _set_up(world: World, table: Table) -> None:
    send = world.chain.send
    domain = ("text", "ipfs://rules", DIGEST, ZERO)
    pool = (world.domain, world.roles(), TERMS, "ipfs://pool")
    table.add("token: transfer", send(MUSTER, "transfer", world.owner.address, 5, sender=world.provider))
    table.add("domain: create", send(DOMAINS, "createDomain", *domain, sender=world.governor))
    table.add("pool: create", send(POOLS, "createPool", *pool, sender=world.owner))
    table.add("pool: fund", send(POOLS, "fund", world.pool, 400_000, sender=world.owner))
    table.add("pool: set terms", send(POOLS, "setTerms", world.pool, TERMS | {"lookBps": 10_000}, sender=world.owner))
    table.add("node: register", world.register("provider", "node2"))
    table.add("pool: join, carried", world.join("node2"))
    table.add("pool: leave, carried", world.leave("node2"))
    table.add("pool: join again", world.join("node2"))
    table.add("stake: stake", send(STAKE, "stake", 5, sender=world.provider))
    table.add("stake: begin unbonding", send(STAKE, "beginUnbond", 5, sender=world.provider))
    world.chain.warp(UNBONDING)
    table.add("stake: withdraw", send(STAKE, "withdraw", sender=world.provider))
    table.add("node: update", send(REGISTRY, "updateNode", world.node2.address, SHA256, 9, sender=world.provider))
    table.add("checkpoint: announce", world.announce(1, 0))
    table.add("audit secret: commit", send(SECRETS, "commit", world.pool, 1, DIGEST, sender=world.validator))


def _work(world: World, table: Table) -> None:
    send = world.chain.send
    own = world.submission(world.lease(index=1)) | {"nodeSignature": b""}
    table.add("work: submit by the node", send(WORK, "submitWork", *own.values(), sender=world.node))
    carried = world.submission(world.lease(index=2))
    table.add("work: submit, carried", send(WORK, "submitWork", *carried.values(), sender=world.stranger))
    items = [world.submission(world.lease(index=10 + place)) for place in range(BATCH)]
    batch = send(WORK, "submitBatch", items, sender=world.stranger)
    table.add(f"work: submit, batch of {BATCH}", batch, items=BATCH)
    keys = [event.args["key"] for event in batch.events if event.name == "WorkSubmitted"]
    single, forged, lost, in_vain = (world.submit(index=index) for index in (3, 4, 5, 7))
    table.add("work: judge one", world.judge(single))
    table.add(f"work: judge, batch of {BATCH}", world.judge(*keys), items=BATCH)
    looked = world.submit(index=6)
    world.judge(looked)
    world.next_block()
    world.next_block()
    table.add("work: confirm a verdict", world.confirm(looked, by="validator2"))
    table.add("work: dispute", world.dispute(single))
    table.add("work: second verdict, paid", world.judge(single, by="validator2", decisive=True))
    world.judge(in_vain, outcome=REJECTED)
    world.dispute(in_vain)
    answered = world.judge(in_vain, by="validator2", outcome=REJECTED, decisive=True)
    table.add("work: second verdict, lost dispute", answered)
    world.judge(forged, outcome=FORGED)
    world.chain.warp(TERMS["challengePeriod"] + 1)
    table.add(f"work: finalize paid, batch of {BATCH}", world.finalize(*keys), items=BATCH)
    table.add("work: finalize forged", world.finalize(forged))
    table.add("work: expire", send(WORK, "expire", [lost], sender=world.stranger))
    claim = ([world.pool], world.provider.address)
    table.add("rewards: claim", send(WORK, "claim", *claim, sender=world.provider))


async def main() -> None:
    """Starts a chain and prints the table."""
    kind = ChainKind(sys.argv[1]) if len(sys.argv) > 1 else ChainKind.EMBEDDED
    async with start_chain(kind) as process:
        table = await asyncio.to_thread(measure, process.url)
    table.show()


if __name__ == "__main__":
    end_in_order()
    asyncio.run(main())
