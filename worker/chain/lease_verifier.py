"""Compares a lease with the chain: the announced version, and the block whose hash is part of the slot's seed.

Validators take the beacon from the chain. A node that believed another one would generate, in good faith, what every
check calls forged; so it looks for itself, by the rule of decision 0019: the later of the version's announcement and
one of this node's own joinings.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from ledger.client import Ledger
from ledger.errors import ChainUnavailable
from ledger.events.types import CheckpointAnnounced, MemberJoined
from protocol.errors import NotFound
from protocol.identifiers import Address, Digest
from protocol.leases import Lease

MOST_REMEMBERED = 256

_Ground = tuple[Address, int, Digest, int, Digest, int, Digest]
"""Node, pool, run, version, version digest, block, and the block's hash."""


class LeaseVerifier:
    """Compares leases with the chain. What was borne out once is remembered, and not asked again."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Ground, None] = OrderedDict()

    async def fault(self, ledger: Ledger, lease: Lease, *, beacon: Digest) -> str:
        """Returns what is wrong with a grant, in words; empty if the chain bears it out.

        Args:
            ledger: To read.
            lease: This node's; it names the block.
            beacon: The hash of that block, as the orchestrator says.

        Raises:
            ChainUnavailable: The chain does not answer, or its node has not come as far as the block.
        """
        block = lease.beacon_block
        ground = (lease.node, lease.pool_id, lease.run, lease.version, lease.digest, block, beacon)
        if ground in self._known:
            return ""
        (blocks, missing), found = await asyncio.gather(self._blocks(ledger, lease, block), _hash(ledger, block))
        if missing:
            return missing
        if block not in blocks:
            return f"its seed is to stand on block {block}; the announcement and this node's joining say {max(blocks)}"
        if found != beacon:
            return f"its seed is to stand on {beacon}, and block {block} has the hash {found}"
        self._known[ground] = None
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return ""

    async def _blocks(self, ledger: Ledger, lease: Lease, named: int) -> tuple[set[int], str]:
        """The blocks that may be meant, or what is missing. Past joinings and attempts are read only where it matters.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        announced, joined = await asyncio.gather(
            ledger.checkpoints.get(lease.pool_id, lease.run, lease.version),
            ledger.pools.membership(lease.pool_id, lease.node),
        )
        if announced is not None and announced.digest == lease.digest and joined is not None:
            block = max(announced.block, joined.joined_block)
            if block == named:
                return {block}, ""
        attempts, joinings = await asyncio.gather(
            ledger.history(CheckpointAnnounced, pool_id=lease.pool_id, second=lease.run),
            ledger.history(MemberJoined, pool_id=lease.pool_id, second=lease.node),
        )
        wanted = (lease.version, lease.digest)
        announcements = [each.log.block_number for each in attempts if (each.version, each.digest) == wanted]
        if not announcements:
            return set(), f"version {lease.version} with digest {lease.digest} is not announced on the ledger"
        if not joinings:
            return set(), "this node never joined the pool"
        return {max(one, other.log.block_number) for one in announcements for other in joinings}, ""


async def _hash(ledger: Ledger, block: int) -> Digest:
    try:
        return await ledger.block_hash(block)
    except NotFound as error:
        raise ChainUnavailable(f"the chain's node has no block {block} (yet)") from error
