"""Work that was leased, done and submitted on a real chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ledger.client.work import Submission
from ledger.events import WorkSubmitted
from protocol.identifiers import Digest, digest, run_id
from protocol.leases import Lease, Work
from tests.ledger.client.conftest import POOL, World
from validator.submissions import SubmittedWork

RUN = run_id("main")
CHECKPOINT = Digest("0x" + "c1" * 32)


async def announced(world: World, *, version: int = 1, attempt: int = 0, checkpoint: Digest = CHECKPOINT) -> int:
    """Announces a version and returns the block."""
    publisher = await world.as_("publisher")
    receipt = await publisher.checkpoints.announce(
        pool_id=POOL, run=RUN, version=version, attempt=attempt, digest=checkpoint
    )
    return receipt.block_number


async def leased(
    world: World, *, index: int = 0, units: int = 100, signer: str = "orchestrator", groups: int = 2, node: str = "node"
) -> Submission:
    """Work of `node`, ready to be carried."""
    ledger, key = await world.as_("owner"), world.keys[node]
    lease = Lease(
        pool_id=POOL,
        run=RUN,
        step=1,
        index=index,
        node=key.address,
        version=1,
        digest=CHECKPOINT,
        groups=groups,
        max_units=1000,
        expiry=int((await ledger.now()).timestamp()) + 600,
    )
    sha256 = digest(index.to_bytes(32, "big"))
    word = Work(lease_hash=lease.hash, sha256=sha256, units=units)
    domain = ledger.work.domain
    return Submission(lease, lease.sign(world.keys[signer], domain), sha256, units, word.sign(key, domain))


async def carried(world: World, items: Sequence[Submission]) -> list[SubmittedWork]:
    """Submits in one transaction; what the ledger took, in order."""
    carrier = await world.as_("orchestrator")
    await carrier.work.submit_batch(items)
    keys = {item.lease.key.hash for item in items}
    return [
        SubmittedWork.of(event) for event in await carrier.history(WorkSubmitted, pool_id=POOL) if event.key in keys
    ]


async def submitted(world: World, *, index: int = 0) -> SubmittedWork:
    """One piece of work on the ledger."""
    (work,) = await carried(world, [await leased(world, index=index)])
    return work


def with_lease(item: Submission, world: World, *, signer: str = "orchestrator", **changes: Any) -> Submission:
    """The same work under another lease for the same slot, signed by the node as well."""
    lease = replace(item.lease, **changes)
    key, domain = world.keys["node"], world.opened["owner"].work.domain
    word = Work(lease_hash=lease.hash, sha256=item.sha256, units=item.units)
    return replace(
        item,
        lease=lease,
        lease_signature=lease.sign(world.keys[signer], domain),
        node_signature=word.sign(key, domain),
    )
