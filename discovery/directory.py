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
from protocol.errors import Forbidden, NotFound, RateLimited
from protocol.http.rates import KeyedRates, Rate
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock
from protocol.wire.federation import NodeStatement, NodeStatementPage
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodePage, NodeRecord, Registration

FORWARDED_RATE = Rate(count=5, per=timedelta(seconds=1), burst=500)
"""Rate of the invites that one peer may pass on for one pool. A peer that is down for a while sends a full queue."""


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
    peers: frozenset[Address] = frozenset()
    """Addresses of the discovery services that may read statements and pass invites on."""
    forwarded: KeyedRates
    """Rates of the invites that peers pass on, by peer and pool."""

    async def register(
        self, statement: NodeStatement, registration: Registration, *, ip: str, shareable: bool
    ) -> NodeRecord:
        """Stores or refreshes a node's registration; returns the record with ledger facts.

        Args:
            statement: The node's signed request.
            registration: Body of the request.
            ip: Source IP of the request.
            shareable: Whether other services can check the signature.

        Raises:
            NotFound: The requested pool is not on the ledger.
            RateLimited: Too many nodes registered from this IP, or the pool has no room for more records.
            Conflict: The node signed this request before it removed itself.
        """
        pool_id = registration.pool_id
        if not await self.is_pool(pool_id):
            raise NotFound(
                f"there is no pool {pool_id} on the ledger",
                hint="check the pool's number; its owner can tell you (`muster pool show --pool N` reads it)",
                code="unknown-pool",
            )
        on_ledger = await self.facts.knows(statement.node)
        record = await self.records.register(statement, registration, ip=ip, on_ledger=on_ledger, shareable=shareable)
        return await self._shown(record)

    async def is_pool(self, pool_id: int) -> bool:
        """Returns whether nodes may register for this pool: it is on the ledger, or may be a new one."""
        age = await self.facts.age()  # read before the facts, which therefore can't be older than this age
        # While the facts are stale, an unknown pool may be a new one, so its nodes may register. Strangers gain nothing
        # by this, because the number of records is limited.
        stale = age.is_stale(now=self.clock.now(), after=self.facts_stale_after)
        return await self.facts.has_pool(pool_id) or stale

    async def record(self, node: Address) -> NodeRecord:
        """Returns a node's record with ledger facts.

        Raises:
            NotFound: The node is not registered.
        """
        return await self._shown(await self.records.record(node))

    async def remove(self, statement: NodeStatement, *, shareable: bool) -> None:
        """Deletes a node's record and invites.

        Args:
            statement: The node's signed request.
            shareable: Whether other services can check the signature.
        """
        on_ledger = await self.facts.knows(statement.node)
        await self.records.remove(statement, on_ledger=on_ledger, shareable=shareable)

    async def statements(self, reader: Address, *, after: Address | None, most: int) -> NodeStatementPage:
        """Returns one page of the statements that nodes signed, without their IPs, to a peer.

        Raises:
            Forbidden: `reader` is not a peer in this service's settings.
        """
        if reader not in self.peers:
            raise Forbidden(
                f"{reader} is not a peer of this discovery service",
                hint="its operator lists peers with their addresses in the setting `peers` (URL#ADDRESS)",
                code="not-a-peer",
            )
        return await self.records.statements(after=after, most=most)

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
            Forbidden: The signer of the invite does not hold the pool's orchestrator key, or the sender neither holds
                it nor is a peer that passes the invite on.
            NotFound: The node is not registered here, or there is no such pool.
            Unavailable: The ledger can't be read, and the pool's roles are not cached.
            RateLimited: Too many reads of other pools are queued, or a peer passes on too many invites of the pool.
            Conflict: The node wants to join another pool.
        """
        if poster in self.peers and (wait := self.forwarded.wait_for(f"{poster} {invite.pool_id}")):
            raise RateLimited(f"{poster} passes on too many invites of pool {invite.pool_id}", retry_after=wait)
        signer = signer_of(invite, node=node, pools=self.pools, now=self.clock.now())
        orchestrator = frozenset({PoolRole.ORCHESTRATOR})
        await self.access.require(invite.pool_id, signer, orchestrator)
        if poster != signer and poster not in self.peers:
            await self.access.require(invite.pool_id, poster, orchestrator)
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
