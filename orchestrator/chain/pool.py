"""The pool on the ledger. Connects on first use and reconnects after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta

from redis.asyncio import Redis

from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.event_follower import EventFollower
from ledger.client.pools import PoolStatus, Role, Terms
from ledger.deployment import Deployment
from ledger.errors import TransactionReverted
from ledger.events import types as happened
from ledger.events.types import Departure, LedgerEvent
from ledger.transactions.receipts import EventLog
from orchestrator.chain.interface import Changes, MemberEvent, MembershipChange, NodeStanding, PoolStanding
from protocol.errors import Forbidden
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import RedisKeys
from protocol.runtime.clock import Clock

ANSWER_PATIENCE = timedelta(seconds=5)
"""For one question to the chain."""

CURSOR = "membership"

MOST_REASON = 200
"""Characters of a reason that go on the ledger."""

FOLLOWED: tuple[type[LedgerEvent], ...] = (
    happened.MemberJoined,
    happened.MemberLeft,
    happened.NodeBanned,
    happened.NodeUnbanned,
    happened.ProviderBanned,
    happened.ProviderUnbanned,
)

_DEPARTURES = {
    Departure.LEFT: MemberEvent.LEFT,
    Departure.REMOVED: MemberEvent.REMOVED,
    Departure.EVICTED: MemberEvent.EVICTED,
    Departure.BANNED: MemberEvent.BANNED,
}


_WORDS = {
    MemberEvent.LEFT: "it left the pool",
    MemberEvent.REMOVED: "it was taken from the pool",
    MemberEvent.EVICTED: "it was evicted",
    MemberEvent.BANNED: "it was banned",
}


class LedgerPool:
    """One pool on the ledger over JSON-RPC; a `PoolLedger`.

    Args:
        chain_url: JSON-RPC endpoint.
        deployment: Where the contracts are.
        pool_id: Which pool.
        key: The pool's orchestrator key; sends removals.
        manager: The pool's manager key, if bans are to be sent from here.
        redis: Keeps the position in the events, for all orchestrators of the pool.
        confirmations: Blocks on top of one before its events count.
        clock: Whose time counts.
    """

    def __init__(
        self,
        chain_url: str,
        deployment: Deployment,
        *,
        pool_id: int,
        key: Key,
        manager: Key | None,
        redis: Redis,
        confirmations: int,
        clock: Clock,
    ) -> None:
        self._chain_url = chain_url
        self._deployment = deployment
        self._pool_id = pool_id
        self._key = key
        self._manager = manager
        self._clock = clock
        self._following = EventFollower(
            CURSOR,
            deployment,
            kinds=FOLLOWED,
            contracts=[deployment[Contract.COMPUTE_POOLS]],
            redis=redis,
            keys=RedisKeys(f"pool-{pool_id}"),
            confirmations=confirmations,
            clock=clock,
        )
        self._stack = AsyncExitStack()
        self._connections: dict[Address | None, Ledger] = {}
        self._connecting = asyncio.Lock()

    @property
    def domain(self) -> SigningDomain:
        """The contract that takes invites."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.COMPUTE_POOLS])

    async def pool(self) -> PoolStanding:
        """The pool as it stands."""
        pools = (await self._connected()).pools
        pool, terms, manager, orchestrator, publisher, validators = await asyncio.gather(
            pools.get(self._pool_id),
            pools.terms(self._pool_id),
            pools.seat(self._pool_id, Role.MANAGER),
            pools.seat(self._pool_id, Role.ORCHESTRATOR),
            pools.seat(self._pool_id, Role.PUBLISHER),
            pools.validators(self._pool_id),
        )
        now = self._clock.now()
        return PoolStanding(
            domain_id=pool.domain_id,
            active=pool.status is PoolStatus.ACTIVE,
            owner=pool.owner,
            managers=manager.keys(now),
            orchestrator=orchestrator.holder,
            publishers=publisher.keys(now),
            validators=frozenset(validators),
            min_capacity=terms.min_capacity,
            max_nodes=terms.max_nodes,
            members=pool.member_count,
        )

    async def standing(self, node: Address) -> NodeStanding:
        """A node as it stands, over a connection of its own."""
        ledger = await self._connected_for_nodes()
        registered, membership, terms = await asyncio.gather(
            ledger.registry.node(node),
            ledger.pools.membership(self._pool_id, node),
            ledger.pools.terms(self._pool_id),
        )
        if registered is None or registered.retired:
            banned = await ledger.pools.is_banned(self._pool_id, node)
            return _unregistered(member=membership is not None, banned=banned, terms=terms)
        stake, banned = await asyncio.gather(
            ledger.stake.of(registered.provider), ledger.pools.is_banned(self._pool_id, node, registered.provider)
        )
        return NodeStanding(
            provider=registered.provider,
            member=membership is not None,
            banned=banned,
            capacity=registered.capacity,
            free_stake=stake.free,
            needed_stake=registered.capacity * terms.stake_per_capacity,
        )

    async def remove(self, nodes: Sequence[Address], *, reason: str) -> None:
        """Takes nodes from the pool without blame; those that left already are skipped."""
        ledger = await self._connected(self._key)
        await ledger.pools.remove(self._pool_id, list(nodes), reason[:MOST_REASON])

    async def ban(self, node: Address, *, reason: str) -> None:
        """Bans a node; one that is banned already stays so, and nothing is wrong with that.

        Raises:
            Forbidden: This orchestrator does not have the manager's key.
        """
        ledger = await self._connected(self._manager_key())
        with _unchanged_is_done():
            await ledger.pools.ban(self._pool_id, node, reason[:MOST_REASON])

    async def unban(self, node: Address) -> None:
        """Lifts a ban; where there is none, nothing is wrong with that.

        Raises:
            Forbidden: This orchestrator does not have the manager's key.
        """
        ledger = await self._connected(self._manager_key())
        with _unchanged_is_done():
            await ledger.pools.unban(self._pool_id, node)

    async def changes(self) -> Changes:
        """Returns membership events since the last commit."""
        batch = await self._following.poll(await self._connected())
        found = [change for event in batch.events if (change := self._read(event.log, reverted=event.reverted))]

        async def commit() -> None:
            await self._following.commit(batch)

        return Changes(tuple(found), commit, more=not self._following.at_head(batch))

    def forget_position(self) -> None:
        """Reads the position from the store again: another orchestrator may have read on."""
        self._following.forget_position()

    async def aclose(self) -> None:
        """Closes the connections."""
        self._connections.clear()
        await self._stack.aclose()

    async def _connected(self, key: Key | None = None) -> Ledger:
        return await self._opened(key or self._key)

    async def _connected_for_nodes(self) -> Ledger:
        """A connection without a key. Requests of strangers cause reads over it, and these delay no others."""
        return await self._opened(None)

    async def _opened(self, key: Key | None) -> Ledger:
        name = None if key is None else key.address
        async with self._connecting:
            if name not in self._connections:
                opening = Ledger.connect(
                    self._chain_url, self._deployment, key=key, timeout=ANSWER_PATIENCE, clock=self._clock
                )
                self._connections[name] = await self._stack.enter_async_context(opening)
            return self._connections[name]

    def _manager_key(self) -> Key:
        if self._manager is None:
            raise Forbidden(
                "this orchestrator does not have the pool manager's key, and only the manager bans",
                hint="set manager_keystore in its settings, or ban with `muster pool ban` and the manager's own key",
                code="no-manager-key",
            )
        return self._manager

    def _read(self, log: EventLog, *, reverted: bool) -> MembershipChange | None:
        event = self._following.decode(log)
        if event is None or getattr(event, "pool_id", None) != self._pool_id:
            return None
        change = _change(event)
        if change is not None and reverted:
            return MembershipChange(event=MemberEvent.LOOK, node=change.node, provider=change.provider)
        return change


@contextmanager
def _unchanged_is_done() -> Iterator[None]:
    """A request may be repeated because the first result was lost, here or on its way to Redis."""
    try:
        yield
    except TransactionReverted as error:
        if error.name != "BanUnchanged":
            raise


def _change(event: LedgerEvent) -> MembershipChange | None:
    change: MembershipChange | None = None
    match event:
        case happened.MemberJoined():
            change = MembershipChange(event=MemberEvent.JOINED, node=event.node)
        case happened.MemberLeft():
            kind = _DEPARTURES[event.cause]
            words = f"{_WORDS[kind]} on the ledger" + (f": {event.reason}" if event.reason else "")
            change = MembershipChange(event=kind, node=event.node, cause=words)
        case happened.NodeBanned():
            change = MembershipChange(event=MemberEvent.BANNED, node=event.node, cause=event.reason)
        case happened.NodeUnbanned():
            change = MembershipChange(event=MemberEvent.UNBANNED, node=event.node)
        case happened.ProviderBanned():
            change = MembershipChange(event=MemberEvent.BANNED, provider=event.provider, cause=event.reason)
        case happened.ProviderUnbanned():
            change = MembershipChange(event=MemberEvent.UNBANNED, provider=event.provider)
        case _:
            pass
    return change


def _unregistered(*, member: bool, banned: bool, terms: Terms) -> NodeStanding:
    return NodeStanding(
        provider=None, member=member, banned=banned, capacity=0, free_stake=0, needed_stake=terms.stake_per_capacity
    )
