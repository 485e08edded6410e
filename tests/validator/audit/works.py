"""Work that was leased, done and submitted on a real chain."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.events.types import CheckpointAnnounced, WorkSubmitted
from protocol.identifiers import Digest, digest, run_id
from protocol.leases import Lease, WorkClaim
from protocol.wire.leases import SignedLease, SignedWorkClaim
from tests.kit.world import POOL, World
from validator.domain.submissions import SubmittedWork

RUN = run_id("main")
CHECKPOINT = Digest("0x" + "c1" * 32)
SALT = Digest("0x" + "5a" * 32)


async def announced(world: World, *, version: int = 1, attempt: int = 0, checkpoint: Digest = CHECKPOINT) -> int:
    """Announces a version and returns the block."""
    publisher = await world.as_("publisher")
    receipt = await publisher.checkpoints.announce(
        pool_id=POOL, run=RUN, version=version, attempt=attempt, digest=checkpoint
    )
    return receipt.block_number


async def beacon_of(world: World, *, node: str = "node") -> int:
    """Returns the beacon block of a lease that an honest orchestrator signs now; 0 without a version or a join."""
    ledger = await world.as_("owner")
    every = await ledger.history(CheckpointAnnounced, pool_id=POOL, second=RUN)
    member = await ledger.pools.membership(POOL, world.keys[node].address)
    if not every or member is None:
        return 0
    return max(every[-1].log.block_number, member.joined_block)


async def leased(
    world: World,
    *,
    index: int = 0,
    units: int = 100,
    signer: str = "orchestrator",
    groups: int = 2,
    node: str = "node",
    beacon_block: int | None = None,
) -> SignedWorkClaim:
    """Returns a work claim of `node`, ready to be submitted."""
    ledger, key = await world.as_("owner"), world.keys[node]
    lease = Lease(
        pool_id=POOL,
        run=RUN,
        step=1,
        index=index,
        node=key.address,
        version=1,
        digest=CHECKPOINT,
        beacon_block=await beacon_of(world, node=node) if beacon_block is None else beacon_block,
        salt=SALT,
        groups=groups,
        max_units=200,
        expiry=int((await ledger.now()).timestamp()) + 600,
    )
    sha256 = digest(index.to_bytes(32, "big"))
    word = WorkClaim(lease_hash=lease.hash, sha256=sha256, units=units)
    domain = ledger.work.domain
    signed = SignedLease.of(lease, domain=domain, signature=lease.sign(world.keys[signer], domain))
    return SignedWorkClaim(lease=signed, sha256=sha256, units=units, signature="0x" + word.sign(key, domain).hex())


async def carried(world: World, items: Sequence[SignedWorkClaim]) -> list[SubmittedWork]:
    """Submits works in one transaction; returns those that the ledger accepted, in their order."""
    carrier = await world.as_("orchestrator")
    await carrier.work.submit_batch(items)
    keys = {item.lease.lease.key.hash for item in items}
    return [
        SubmittedWork.of(event) for event in await carrier.history(WorkSubmitted, pool_id=POOL) if event.key in keys
    ]


async def submitted(
    world: World, *, index: int = 0, beacon_block: int | None = None, node: str = "node"
) -> SubmittedWork:
    """Returns one submitted work."""
    (work,) = await carried(world, [await leased(world, index=index, beacon_block=beacon_block, node=node)])
    return work
