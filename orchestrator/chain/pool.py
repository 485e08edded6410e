"""Reads and writes one pool on the ledger over JSON-RPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta

import httpx
from redis.asyncio import Redis

from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.event_follower import EventFollower, ObservedEvent
from ledger.client.pools import PoolStatus, Role, Terms
from ledger.deployment import Deployment
from ledger.errors import TransactionReverted
from ledger.events import types as event_types
from ledger.events.types import Departure, LedgerEvent
from orchestrator.chain.interface import (
    Changes,
    ConsentStatus,
    MemberEvent,
    MembershipChange,
    NodeLedgerStatus,
    PoolLedgerStatus,
    PoolMoney,
    ProviderStatus,
)
from orchestrator.domain.keys import pool_keys
from protocol.errors import Forbidden
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock

REQUEST_TIMEOUT = timedelta(seconds=5)
"""Time limit of one request to the RPC endpoint."""

CURSOR = "membership"
"""Name of the stored position in the events."""

MAX_REASON = 200
"""Maximum characters of a reason that are written to the ledger."""

FOLLOWED: tuple[type[LedgerEvent], ...] = (
    event_types.MemberJoined,
    event_types.MemberLeft,
    event_types.NodeBanned,
    event_types.NodeUnbanned,
    event_types.ProviderBanned,
    event_types.ProviderUnbanned,
)

_DEPARTURES = {
    Departure.LEFT: MemberEvent.LEFT,
    Departure.REMOVED: MemberEvent.REMOVED,
    Departure.EVICTED: MemberEvent.EVICTED,
    Departure.BANNED: MemberEvent.BANNED,
}


_CAUSES = {
    MemberEvent.LEFT: "it left the pool",
    MemberEvent.REMOVED: "it was removed from the pool",
    MemberEvent.EVICTED: "it was evicted",
    MemberEvent.BANNED: "it was banned",
}


class LedgerPool:
    """One pool on the ledger over JSON-RPC; implements `PoolLedger`.

    It connects on first use, and reconnects after failures.

    Args:
        chain_url: JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        pool_id: Number of the pool.
        key: The pool's orchestrator key, which signs the transactions that remove nodes.
        manager: The pool's manager key; None if this orchestrator does not hold it and so can't ban nodes.
        redis: The pool's Redis, which stores the cursor in the ledger's events.
        confirmations: Number of blocks on top of a block before its events count.
        clock: Clock for key rotations and deadlines of transactions.
        transport: HTTP transport for a chain that runs in the same process; None: the network.
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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._chain_url = chain_url
        self.deployment = deployment
        self._pool_id = pool_id
        self._key = key
        self._manager = manager
        self._clock = clock
        self._transport = transport
        self._follower = EventFollower(
            CURSOR,
            deployment,
            kinds=FOLLOWED,
            contracts=[deployment[Contract.COMPUTE_POOLS]],
            redis=redis,
            keys=pool_keys(pool_id),
            confirmations=confirmations,
            clock=clock,
        )
        self._stack = AsyncExitStack()
        self._connections: dict[str, Ledger] = {}
        self._connecting = asyncio.Lock()

    @property
    def domain(self) -> SigningDomain:
        """Signing domain of the contract that redeems invites."""
        return SigningDomain(self.deployment.chain_id, self.deployment[Contract.COMPUTE_POOLS])

    @property
    def registry_domain(self) -> SigningDomain:
        """Signing domain of the contract that registers nodes."""
        return SigningDomain(self.deployment.chain_id, self.deployment[Contract.COMPUTE_REGISTRY])

    async def free_stake(self, provider: Address) -> int:
        """Reads a provider's free stake."""
        return (await (await self._connected_for_consents()).stake.of(provider)).free

    async def consent_status(self, node: Address, provider: Address) -> ConsentStatus:
        """Reads what decides on the registration of a node."""
        ledger = await self._connected_for_consents()
        nonce, registered, terms, banned = await asyncio.gather(
            ledger.registry.consent_nonce(node),
            ledger.registry.node(node),
            ledger.pools.terms(self._pool_id),
            ledger.pools.is_banned(self._pool_id, node, provider),
        )
        return ConsentStatus(
            nonce=nonce,
            provider=None if registered is None or registered.retired else registered.provider,
            banned=banned,
            stake_per_capacity=terms.stake_per_capacity,
            min_capacity=terms.min_capacity,
        )

    async def pool(self) -> PoolLedgerStatus:
        """Reads the pool with its terms and role keys."""
        pools = (await self._connected()).pools
        pool, terms, manager, orchestrator, publisher, validators = await asyncio.gather(
            pools.get(self._pool_id),
            pools.terms(self._pool_id),
            pools.role_holder(self._pool_id, Role.MANAGER),
            pools.role_holder(self._pool_id, Role.ORCHESTRATOR),
            pools.role_holder(self._pool_id, Role.PUBLISHER),
            pools.validators(self._pool_id),
        )
        now = self._clock.now()
        return PoolLedgerStatus(
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
            terms=terms,
        )

    async def node_status(self, node: Address) -> NodeLedgerStatus:
        """Reads a node's registration, membership, stake and bans."""
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
        return NodeLedgerStatus(
            provider=registered.provider,
            member=membership is not None,
            banned=banned,
            capacity=registered.capacity,
            free_stake=stake.free,
            needed_stake=registered.capacity * terms.stake_per_capacity,
        )

    async def provider_status(self, provider: Address) -> ProviderStatus:
        """Reads a provider's stake and rewards in this pool."""
        ledger = await self._connected_for_pages()
        stake, unbonds, period, accrued = await asyncio.gather(
            ledger.stake.of(provider),
            ledger.stake.unbonds_of(provider),
            ledger.stake.unbonding_period(),
            ledger.work.accrued(self._pool_id, provider),
        )
        return ProviderStatus(
            active=stake.active,
            membership_lock=stake.membership_lock,
            work_lock=stake.work_lock,
            unbonding=stake.unbonding,
            unbonds=tuple((each.amount, each.matures_at) for each in unbonds),
            unbonding_period=period,
            accrued=accrued,
        )

    async def money(self, accounts: Sequence[Address]) -> PoolMoney:
        """Reads the pool's escrow and payments, and the coin of `accounts`."""
        ledger = await self._connected_for_pages()
        (escrow, withdrawal, totals, now), coins = await asyncio.gather(
            asyncio.gather(
                ledger.pools.escrow(self._pool_id),
                ledger.pools.withdrawal(self._pool_id),
                ledger.work.totals(self._pool_id),
                ledger.now(),
            ),
            asyncio.gather(*(ledger.balance(each) for each in accounts)),
        )
        withdrawn = withdrawal.takes(now)
        return PoolMoney(
            escrow=escrow.balance,
            reserved=escrow.reserved,
            withdrawal=withdrawn,
            withdrawal_ready=withdrawal.ready_at if withdrawn else None,
            accrued=totals.accrued,
            paid=totals.paid,
            coins=tuple(coins),
            head_time=now,
        )

    async def remove(self, nodes: Sequence[Address], *, reason: str) -> None:
        """Removes nodes without a penalty; skips those that are not members any more."""
        ledger = await self._connected(self._key)
        await ledger.pools.remove(self._pool_id, list(nodes), reason[:MAX_REASON])

    async def ban(self, node: Address, *, reason: str) -> None:
        """Bans a node; does nothing if it is banned already.

        Raises:
            Forbidden: This orchestrator does not have the manager's key.
        """
        ledger = await self._connected(self._manager_key())
        with _ignore_unchanged():
            await ledger.pools.ban(self._pool_id, node, reason[:MAX_REASON])

    async def unban(self, node: Address) -> None:
        """Lifts a ban; does nothing if there is none.

        Raises:
            Forbidden: This orchestrator does not have the manager's key.
        """
        ledger = await self._connected(self._manager_key())
        with _ignore_unchanged():
            await ledger.pools.unban(self._pool_id, node)

    async def changes(self) -> Changes:
        """Returns membership events since the last commit."""
        batch = await self._follower.poll(await self._connected())
        found = [change for each in self._follower.decode(batch) if (change := self._change_of(each))]
        return Changes(tuple(found), lambda: self._follower.commit(batch), more=not self._follower.at_head(batch))

    def forget_position(self) -> None:
        """Makes the next call of `changes` read the position from the store again."""
        self._follower.forget_position()

    async def aclose(self) -> None:
        """Closes the connections."""
        self._connections.clear()
        await self._stack.aclose()

    async def _connected(self, key: Key | None = None) -> Ledger:
        key = key or self._key
        return await self._opened(key.address, key)

    async def _connected_for_nodes(self) -> Ledger:
        """Returns a separate connection for reads about single nodes, so that they can't delay other reads."""
        return await self._opened("nodes", None)

    async def _connected_for_consents(self) -> Ledger:
        """Returns a separate connection for reads about strangers' consents, so that they can't delay other reads."""
        return await self._opened("consents", None)

    async def _connected_for_pages(self) -> Ledger:
        """Returns a separate connection for the owner's and contributors' pages."""
        return await self._opened("pages", None)

    async def _opened(self, name: str, key: Key | None) -> Ledger:
        async with self._connecting:
            if name not in self._connections:
                opening = Ledger.connect(
                    self._chain_url,
                    self.deployment,
                    key=key,
                    timeout=REQUEST_TIMEOUT,
                    clock=self._clock,
                    transport=self._transport,
                )
                self._connections[name] = await self._stack.enter_async_context(opening)
            return self._connections[name]

    def _manager_key(self) -> Key:
        if self._manager is None:
            raise Forbidden(
                "this orchestrator does not have the pool manager's key, and only the manager may ban",
                hint="set manager_keystore in its settings, or ban with `muster pool ban` and the manager's own key",
                code="no-manager-key",
            )
        return self._manager

    def _change_of(self, observed: ObservedEvent) -> MembershipChange | None:
        if getattr(observed.event, "pool_id", None) != self._pool_id:
            return None
        change = _change(observed.event)
        if change is not None and observed.reverted:
            return MembershipChange(event=MemberEvent.REVERTED, node=change.node, provider=change.provider)
        return change


@contextmanager
def _ignore_unchanged() -> Iterator[None]:
    """Ignores `BanUnchanged`: the request may repeat one whose answer was lost."""
    try:
        yield
    except TransactionReverted as error:
        if error.name != "BanUnchanged":
            raise


def _change(event: LedgerEvent) -> MembershipChange | None:
    change: MembershipChange | None = None
    match event:
        case event_types.MemberJoined():
            change = MembershipChange(event=MemberEvent.JOINED, node=event.node)
        case event_types.MemberLeft():
            kind = _DEPARTURES[event.cause]
            cause = f"{_CAUSES[kind]} on the ledger" + (f": {event.reason}" if event.reason else "")
            change = MembershipChange(event=kind, node=event.node, cause=cause)
        case event_types.NodeBanned():
            change = MembershipChange(event=MemberEvent.BANNED, node=event.node, cause=event.reason)
        case event_types.NodeUnbanned():
            change = MembershipChange(event=MemberEvent.UNBANNED, node=event.node)
        case event_types.ProviderBanned():
            change = MembershipChange(event=MemberEvent.BANNED, provider=event.provider, cause=event.reason)
        case event_types.ProviderUnbanned():
            change = MembershipChange(event=MemberEvent.UNBANNED, provider=event.provider)
        case _:
            pass
    return change


def _unregistered(*, member: bool, banned: bool, terms: Terms) -> NodeLedgerStatus:
    return NodeLedgerStatus(
        provider=None, member=member, banned=banned, capacity=0, free_stake=0, needed_stake=terms.stake_per_capacity
    )
