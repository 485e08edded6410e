"""Use cases of discovery: register, show and list nodes, and store and fetch invites."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from discovery.chain.ledger_cache import FactStore
from discovery.chain.roles import READERS, Access, PoolRole
from discovery.mailbox.invites import signer_of
from discovery.mailbox.polls import WaitingPolls
from discovery.mailbox.store import Mailbox
from discovery.store.record_store import RecordStore
from discovery.store.records import StoredRecord, shown
from protocol.errors import NotFound
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodePage, NodeRecord, Registration


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDirectory:
    """The service behind the API: each route calls one of its methods."""

    records: RecordStore
    facts: FactStore
    access: Access
    mailbox: Mailbox
    polls: WaitingPolls
    pools: SigningDomain
    """Signing domain of the contract that accepts invites."""
    facts_stale_after: timedelta
    """Age from which the cached ledger facts count as stale. Then nodes may also register for an unknown pool."""
    clock: Clock

    async def register(self, node: Address, registration: Registration, *, ip: str) -> NodeRecord:
        """Stores or refreshes a node's registration; returns the record with ledger facts.

        Raises:
            NotFound: The requested pool is not on the ledger.
            RateLimited: Too many nodes registered from this IP, or the pool has no room for more records.
        """
        pool_id = registration.pool_id
        age = await self.facts.age()  # read before the facts, which therefore can't be older than this age
        # While the facts are stale, an unknown pool may be a new one, so its nodes may register. Strangers gain nothing
        # by this, because the number of records is limited.
        fresh = not age.is_stale(now=self.clock.now(), after=self.facts_stale_after)
        if not await self.facts.has_pool(pool_id) and fresh:
            raise NotFound(
                f"there is no pool {pool_id} on the ledger",
                hint="check the pool's number; its owner can tell you (`muster pool show --pool N` reads it)",
                code="unknown-pool",
            )
        on_ledger = await self.facts.knows(node)
        record = await self.records.register(node, registration, ip=ip, on_ledger=on_ledger)
        return await self._shown(record)

    async def record(self, node: Address) -> NodeRecord:
        """Returns a node's record with ledger facts.

        Raises:
            NotFound: The node is not registered.
        """
        return await self._shown(await self.records.record(node))

    async def remove(self, node: Address) -> None:
        """Deletes a node's record and invites."""
        await self.records.remove(node)

    async def page(self, pool_id: int, reader: Address, *, after: Address | None, most: int) -> NodePage:
        """Returns one page of a pool's nodes to a reader with a role in the pool.

        Raises:
            Forbidden: `reader` has no role that may list nodes.
            NotFound: There is no such pool.
            Unavailable: The ledger can't be read, and the pool's roles are not cached.
            RateLimited: Too many reads of other pools are queued.
        """
        await self.access.require(pool_id, reader, READERS)
        page = await self.records.page(pool_id, after=after, most=most)
        facts = await self.facts.of(pool_id, [record.address for record in page.records])
        age = await self.facts.age()
        nodes = tuple(shown(record, facts[record.address], age) for record in page.records)
        return NodePage(nodes=nodes, next_cursor=page.last)

    async def invite(self, node: Address, invite: SignedInvite, *, poster: Address) -> None:
        """Stores an invite for a node.

        Raises:
            InvalidInput: The invite names another node or contract, has expired, lasts too long, or its signature is
                invalid.
            Forbidden: The sender or the signer of the invite does not hold the pool's orchestrator key.
            NotFound: The node is not registered here, or there is no such pool.
            Unavailable: The ledger can't be read, and the pool's roles are not cached.
            RateLimited: Too many reads of other pools are queued.
            Conflict: The node wants to join another pool.
        """
        signer = signer_of(invite, node=node, pools=self.pools, now=self.clock.now())
        orchestrator = frozenset({PoolRole.ORCHESTRATOR})
        await self.access.require(invite.pool_id, poster, orchestrator)
        if signer != poster:
            await self.access.require(invite.pool_id, signer, orchestrator)
        await self.mailbox.post(invite)

    async def invites(
        self, node: Address, *, ip: str, longest_wait: timedelta, stopping: asyncio.Event
    ) -> tuple[SignedInvite, ...]:
        """Returns a node's invites; waits up to `longest_wait` for the first one.

        Raises:
            NotFound: The node is not registered, so no invite can arrive.
            RateLimited: Too many long polls are waiting.
        """
        if longest_wait <= timedelta():
            return await self.mailbox.invites(node)
        with self.polls.one_from(ip):
            return await self.mailbox.wait(node, longest_wait, stopping=stopping)

    async def _shown(self, record: StoredRecord) -> NodeRecord:
        facts = await self.facts.of(record.registration.pool_id, [record.address])
        return shown(record, facts[record.address], await self.facts.age())
