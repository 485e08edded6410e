"""Verifies a lease against the chain: the announced version and the beacon block.

The hash of the beacon block is part of the slot's seed. Validators read this hash from the chain. They judge rollouts
from any other hash as forged, even if an honest node got the wrong hash from its orchestrator. By decision 0019 the
beacon block is the later of two blocks: the one that announced the version, and the one in which this node joined the
pool.
"""

from __future__ import annotations

import asyncio

from cachetools import LRUCache

from ledger.client import Ledger
from ledger.errors import ChainUnavailable
from ledger.events.types import CheckpointAnnounced, MemberJoined
from protocol.errors import NotFound
from protocol.identifiers import Address, Digest
from protocol.leases import Lease

MOST_REMEMBERED = 256
"""Maximum number of verified leases that are cached."""

_LeaseBasis = tuple[Address, int, Digest, int, Digest, int, Digest]
"""Data that was verified: node, pool, run, version, version digest, beacon block, and that block's hash."""


class LeaseVerifier:
    """Verifies leases against the chain, and caches positive results."""

    def __init__(self) -> None:
        self._verified: LRUCache[_LeaseBasis, None] = LRUCache(MOST_REMEMBERED)

    async def fault(self, ledger: Ledger, lease: Lease, *, beacon: Digest) -> str:
        """Returns how a lease contradicts the chain, as text.

        The text is empty if lease and chain agree.

        Args:
            ledger: Ledger client.
            lease: A lease of this node, which names the beacon block.
            beacon: Hash of that block according to the orchestrator.

        Raises:
            ChainUnavailable: The RPC endpoint does not answer, or does not have the block yet.
        """
        block = lease.beacon_block
        basis = (lease.node, lease.pool_id, lease.run, lease.version, lease.digest, block, beacon)
        if basis in self._verified:
            return ""
        (blocks, missing), found = await asyncio.gather(self._blocks(ledger, lease, block), _hash(ledger, block))
        if missing:
            return missing
        if block not in blocks:
            return f"its beacon block is {block}, but announcement and joining require {max(blocks)}"
        if found != beacon:
            return f"its beacon is {beacon}, but block {block} has the hash {found}"
        self._verified[basis] = None
        return ""

    async def _blocks(self, ledger: Ledger, lease: Lease, named: int) -> tuple[set[int], str]:
        """Returns the acceptable beacon blocks, and the reason if there are none.

        The history of events (earlier joins and announcements) is read only if the current state does not match,
        because this takes longer.

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
        raise ChainUnavailable(f"the RPC endpoint does not have block {block} (yet)") from error
