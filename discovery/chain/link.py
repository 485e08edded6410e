"""Reads the chain: the roles of a pool on request, and facts about nodes from events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, TypeVar

import httpx
from redis.asyncio import Redis

from discovery.chain.ledger_cache import FactChanges, FactStore
from discovery.chain.roles import PoolRole, PoolRoles
from discovery.mailbox.store import Mailbox
from discovery.store.record_store import KEYS
from ledger.client import Ledger
from ledger.client.event_follower import EventFollower
from ledger.client.pools import Role
from ledger.deployment import Deployment
from ledger.events import types as events
from ledger.events.cursor import EventBatch
from ledger.events.types import LedgerEvent
from protocol.errors import NotFound
from protocol.identifiers import ZERO_ADDRESS, Address
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock, SystemClock

K = TypeVar("K")
V = TypeVar("V")

ANSWER_TIMEOUT = timedelta(seconds=5)
"""Time limit of one read of the chain, for which an API request may have to wait."""
COUNT_GOOD_FOR = timedelta(seconds=1)
"""Time for which the number of pools is cached. In this time, requests for unknown pools cause at most one read."""
READS_AT_ONCE = 16
"""Maximum number of concurrent reads of the chain for one batch of events."""
LEASE_LIFETIME = timedelta(seconds=15)
"""Lifetime of the event reader's leader lease. If its holder crashes, another instance takes over after this time."""
CURSOR = "facts"
"""Name under which Redis stores the position of the event reader."""

FOLLOWED: tuple[type[LedgerEvent], ...] = (
    events.NodeRegistered,
    events.NodeRetired,
    events.Staked,
    events.UnbondStarted,
    events.UnbondCancelled,
    events.Slashed,
    events.PoolCreated,
    events.MemberJoined,
    events.NodeBanned,
    events.NodeUnbanned,
    events.ProviderBanned,
    events.ProviderUnbanned,
)


class LedgerSource(Protocol):
    """Interface to the ledger. Every method may raise `Unavailable` while the chain is down."""

    async def roles(self, pool_id: int) -> PoolRoles:
        """Returns the holders of all roles in a pool.

        Raises:
            NotFound: There is no such pool.
        """
        ...

    async def read(self, facts: FactStore, mailbox: Mailbox) -> None:
        """Updates facts from new events, and deletes invites of nodes that joined.

        A loop calls it at an interval.
        """
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


@dataclass(slots=True)
class Touched:
    """Nodes, providers, pools and bans that a batch of events mentions, and whose current state is read from the chain.

    The values in the events are not used, because they may be outdated: a reorg may have removed the event, or another
    instance may have read later events. `joined` is an exception: it is taken from the events.
    """

    nodes: set[Address] = field(default_factory=set)
    providers: set[Address] = field(default_factory=set)
    banned_nodes: set[tuple[int, Address]] = field(default_factory=set)
    banned_providers: set[tuple[int, Address]] = field(default_factory=set)
    pools: set[int] = field(default_factory=set)
    """Numbers of pools that were created, or whose creation a reorg removed."""
    joined: set[Address] = field(default_factory=set)
    """Nodes that joined a pool, without joins that a reorg removed."""

    def note(self, event: LedgerEvent, *, reverted: bool) -> None:
        """Adds the identifiers in an event.

        Args:
            event: The event.
            reverted: True if a reorg removed the event.
        """
        match event:
            case events.NodeRegistered() | events.NodeRetired():
                self.nodes.add(event.node)
                self.providers.add(event.provider)
            case events.Staked() | events.UnbondStarted() | events.UnbondCancelled() | events.Slashed():
                self.providers.add(event.provider)
            case events.PoolCreated():
                self.pools.add(event.pool_id)
            case events.NodeBanned() | events.NodeUnbanned():
                self.banned_nodes.add((event.pool_id, event.node))
            case events.ProviderBanned() | events.ProviderUnbanned():
                self.banned_providers.add((event.pool_id, event.provider))
            case events.MemberJoined() if not reverted:
                self.joined.add(event.node)
            case _:
                pass


class LedgerLink:
    """Reads the ledger over JSON-RPC; connects on first use and reconnects after failures.

    Args:
        chain_url: JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        redis: The service's Redis, which stores up to which block events were read.
        confirmations: Number of blocks on top of a block before its events count.
        clock: The system's clock by default.
        transport: HTTP transport for a chain that runs in the same process; None: the network.
    """

    def __init__(
        self,
        chain_url: str,
        deployment: Deployment,
        *,
        redis: Redis,
        confirmations: int = 0,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._following = EventFollower(
            CURSOR,
            deployment,
            kinds=FOLLOWED,
            contracts=list(deployment.contracts.values()),
            redis=redis,
            keys=KEYS,
            confirmations=confirmations,
            clock=self._clock,
        )
        self._lease = LeaderLease(ScriptRunner(redis, keys=KEYS), "ledger", lifetime=LEASE_LIFETIME)
        # Any caller can cause reads of roles. These reads use a separate connection, so that they don't delay the event
        # reader.
        self._for_events = _Connection(chain_url, deployment, clock=self._clock, transport=transport)
        self._for_roles = _Connection(chain_url, deployment, clock=self._clock, transport=transport)
        self._pools = 0
        self._count_again = 0.0

    async def roles(self, pool_id: int) -> PoolRoles:
        """Reads the current holders of all roles in a pool.

        Raises:
            NotFound: There is no such pool.
            ChainUnavailable: The chain can't be read.
        """
        pools = (await self._for_roles.get()).pools
        if pool_id > self._pools and self._clock.monotonic() >= self._count_again:
            self._pools = await pools.count()
            self._count_again = self._clock.monotonic() + COUNT_GOOD_FOR.total_seconds()
        if not 1 <= pool_id <= self._pools:
            raise NotFound(
                f"there is no pool {pool_id} on the ledger",
                hint="check the pool's number and the chain; `muster pool list` lists pools",
                code="unknown-pool",
            )
        pool, manager, orchestrator, validators = await asyncio.gather(
            pools.get(pool_id),
            pools.role_holder(pool_id, Role.MANAGER),
            pools.role_holder(pool_id, Role.ORCHESTRATOR),
            pools.validators(pool_id),
        )
        now = self._clock.now()
        return {
            PoolRole.OWNER: frozenset({pool.owner}),
            PoolRole.MANAGER: manager.keys(now),
            PoolRole.ORCHESTRATOR: orchestrator.keys(now),
            PoolRole.VALIDATOR: frozenset(validators),
        }

    async def read(self, facts: FactStore, mailbox: Mailbox) -> None:
        """Reads events up to the chain's head while this instance holds the leader lease.

        Raises:
            ChainUnavailable: The chain can't be read; the next call continues where this one stopped.
        """
        while await self._lease.hold():
            ledger = await self._for_events.get()
            batch = await self._following.poll(ledger)
            touched = self._identifiers_in(batch)
            at_head = self._following.at_head(batch)
            as_of_ms = unix_ms(self._clock.now()) if at_head else None
            await facts.apply(await self._read_changes(touched, ledger), as_of_ms=as_of_ms)
            for node in touched.joined:
                await mailbox.clear(node)
            await self._following.commit(batch)
            if at_head:
                return
        self._following.forget_position()  # this instance has lost the lease; another one continues

    async def aclose(self) -> None:
        """Closes the connections."""
        for connection in (self._for_events, self._for_roles):
            await connection.aclose()

    def _identifiers_in(self, batch: EventBatch) -> Touched:
        touched = Touched()
        for each in self._following.decode(batch):
            touched.note(each.event, reverted=each.reverted)
        return touched

    async def _read_changes(self, touched: Touched, ledger: Ledger) -> FactChanges:
        async def provider_ban(key: tuple[int, Address]) -> bool:
            # `is_banned` takes a node and its provider. No node has address zero, so the result is the provider's ban.
            return await ledger.pools.is_banned(key[0], ZERO_ADDRESS, key[1])

        async def stake(provider: Address) -> int:
            return (await ledger.stake.of(provider)).active

        bans = await _each(touched.banned_nodes, lambda key: ledger.pools.is_banned(*key))
        count = await ledger.pools.count() if touched.pools else 0  # pools are numbered from 1 without gaps
        return FactChanges(
            providers=await _each(touched.nodes, ledger.registry.provider_of),
            stakes=await _each(touched.providers, stake),
            bans=bans | await _each(touched.banned_providers, provider_ban),
            pools={pool_id: pool_id <= count for pool_id in touched.pools},
        )


class _Connection:
    """A connection to the chain, opened on first use."""

    def __init__(
        self, chain_url: str, deployment: Deployment, *, clock: Clock, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._chain_url = chain_url
        self._deployment = deployment
        self._transport = transport
        self._clock = clock
        self._stack = AsyncExitStack()
        self._ledger: Ledger | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> Ledger:
        async with self._opening:
            if self._ledger is None:
                opening = Ledger.connect(
                    self._chain_url,
                    self._deployment,
                    timeout=ANSWER_TIMEOUT,
                    clock=self._clock,
                    transport=self._transport,
                )
                self._ledger = await self._stack.enter_async_context(opening)
            return self._ledger

    async def aclose(self) -> None:
        self._ledger = None
        await self._stack.aclose()


async def _each(keys: Iterable[K], read: Callable[[K], Awaitable[V]]) -> dict[K, V]:
    """Reads the value of each key, at most `READS_AT_ONCE` concurrently."""
    turns = asyncio.Semaphore(READS_AT_ONCE)

    async def one(key: K) -> V:
        async with turns:
            return await read(key)

    keys = list(keys)
    return dict(zip(keys, await asyncio.gather(*(one(key) for key in keys)), strict=True))
