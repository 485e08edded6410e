"""Reads and writes one run on the ledger over JSON-RPC: announcements, work and funds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

import httpx
from cachetools import LRUCache
from redis.asyncio import Redis

from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.contract import Refusal
from ledger.client.event_follower import EventFollower
from ledger.client.pools import Pool, PoolStatus, Role, Terms
from ledger.client.work import WorkRecord
from ledger.deployment import Deployment
from ledger.errors import TransactionReverted
from ledger.events.types import CheckpointAnnounced, LedgerEvent, WorkSubmitted
from ledger.transactions.pending import SendPolicy
from orchestrator.chain.run_events import FOLLOWED
from orchestrator.chain.run_interface import (
    AnnouncedCheckpoint,
    Funds,
    JoinedNode,
    RunEvents,
    expiry_of,
)
from orchestrator.domain.keys import pool_keys
from protocol.errors import NotFound
from protocol.identifiers import ZERO_ADDRESS, Address, Digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinRequest, SignedConsents, SignedDispute, SignedLeave

REQUEST_TIMEOUT = timedelta(seconds=5)
"""Time limit of one request to the RPC endpoint."""

TERMS_TTL = timedelta(seconds=8)
"""Time for which the pool's status and terms are cached. It is shorter than the ten seconds between two regular reads
of the funds. The escrow is not cached, because it changes with each submission."""

MAX_HASHES = 1024
"""Maximum number of cached block hashes, and of cached block times."""


class LedgerRun:
    """One run of one pool over JSON-RPC; implements `RunLedger`. It connects on first use.

    Args:
        chain_url: JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        pool_id: Number of the pool.
        run: Id of the run.
        relayer: Key that pays the gas of relayed transactions.
        redis: The pool's Redis, which stores the cursor in the ledger's events.
        confirmations: Number of blocks on top of a block before the block counts.
        clock: Clock for caches and deadlines.
        poll: Interval at which the chain is asked whether a sent transaction is mined.
        transport: HTTP transport for a chain that runs in the same process; None: the network.
    """

    def __init__(
        self,
        chain_url: str,
        deployment: Deployment,
        *,
        pool_id: int,
        run: Digest,
        relayer: Key,
        redis: Redis,
        confirmations: int,
        clock: Clock,
        poll: timedelta = timedelta(milliseconds=200),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._chain_url = chain_url
        self._deployment = deployment
        self._pool_id = pool_id
        self._run = run
        self._relayer = relayer
        self._confirmations = confirmations
        self._clock = clock
        self._policy = SendPolicy(poll=poll)
        self._transport = transport
        # The stored position in the events is named after the run, so that another run reads events from the start.
        self._follower = EventFollower(
            f"run-{run[2:18]}",
            deployment,
            kinds=[kind for kinds in FOLLOWED.values() for kind in kinds],
            contracts=[deployment[contract] for contract in FOLLOWED],
            redis=redis,
            keys=pool_keys(pool_id),
            confirmations=confirmations,
            clock=clock,
        )
        self._stack = AsyncExitStack()
        self._ledger: Ledger | None = None
        self._connecting = asyncio.Lock()
        self._hashes: LRUCache[int, Digest] = LRUCache(MAX_HASHES)
        self._times: LRUCache[int, int] = LRUCache(MAX_HASHES)
        self._pool_and_terms: tuple[float, Pool, Terms] | None = None

    @property
    def domain(self) -> SigningDomain:
        """Signing domain of the contract that accepts work."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.WORK_LEDGER])

    @property
    def relayer(self) -> Address:
        """Account that pays the gas of relayed transactions."""
        return self._relayer.address

    async def announced(self, version: int | None = None) -> AnnouncedCheckpoint | None:
        """Returns the newest announcement of `version`; None if there is none.

        Without `version`, it is the newest announcement of the run's newest version.
        """
        checkpoints = (await self._connected()).checkpoints
        found = (
            await checkpoints.latest(self._pool_id, self._run)
            if version is None
            else await checkpoints.get(self._pool_id, self._run, version)
        )
        if found is None:
            return None
        return AnnouncedCheckpoint(version=found.version, attempt=found.attempt, digest=found.digest, block=found.block)

    async def publisher_of(self, announced: AnnouncedCheckpoint) -> Address:
        """Returns the publisher's key that announced a version.

        While the key is being rotated, it may be the previous key.
        """
        ledger = await self._connected()
        publisher = await ledger.pools.role_holder(self._pool_id, Role.PUBLISHER)
        if publisher.previous == ZERO_ADDRESS or publisher.previous_until <= await ledger.now():
            return publisher.holder
        named = (announced.version, announced.attempt, announced.digest)
        for event in await ledger.history(
            CheckpointAnnounced, pool_id=self._pool_id, second=self._run, since=announced.block
        ):
            if (event.version, event.attempt, event.digest) == named:
                sender = await ledger.sender_of(event.log.transaction)
                return sender if sender == publisher.previous else publisher.holder
        return publisher.holder

    async def funds(self) -> Funds:
        """Returns the pool's present funds; terms and status are cached for a short time."""
        ledger, now = await self._connected(), self._clock.monotonic()
        pools = ledger.pools
        if self._pool_and_terms is None or self._pool_and_terms[0] <= now:
            pool, terms = await asyncio.gather(pools.get(self._pool_id), pools.terms(self._pool_id))
            self._pool_and_terms = now + TERMS_TTL.total_seconds(), pool, terms
        _, pool, terms = self._pool_and_terms
        escrow, withdrawal, at = await asyncio.gather(
            pools.escrow(self._pool_id), pools.withdrawal(self._pool_id), ledger.now()
        )
        return Funds(
            free=max(0, escrow.free - withdrawal.takes(at)),
            price=terms.price_per_unit,
            penalty=terms.penalty_per_unit,
            fees=terms.reserved_fees,
            active=pool.status is PoolStatus.ACTIVE,
            notice=terms.notice_period,
            judging=terms.judge_period,
            settling=terms.judge_period + terms.challenge_period + terms.dispute_period,
        )

    async def free_stake(self, provider: Address) -> int:
        """Returns a provider's free stake, which is locked neither by memberships nor by open work."""
        return (await (await self._connected()).stake.of(provider)).free

    async def membership(self, node: Address) -> JoinedNode | None:
        """Returns a node's membership; None if it is not a member."""
        found = await (await self._connected()).pools.membership(self._pool_id, node)
        return None if found is None else JoinedNode(provider=found.provider, block=found.joined_block)

    async def held_until(self, node: Address) -> int:
        """Returns the latest expiry of leases under which a former member may still submit work.

        The expiry is in Unix seconds; 0 if there is no such lease.
        """
        return await (await self._connected()).pools.held_until(self._pool_id, node)

    async def block_hash(self, block: int) -> Digest | None:
        """Returns the hash of a block; None until the block has the pool's confirmations.

        The hash is cached until a reorg.
        """
        cached: Digest | None = self._hashes.get(block)
        if cached is not None:
            return cached
        ledger = await self._connected()
        if await ledger.block() < block + self._confirmations:
            return None
        try:
            found = await ledger.block_hash(block)
        except NotFound:
            return None
        self._hashes[block] = found
        return found

    async def block_time(self, block: int) -> int | None:
        """Returns the time of a block in Unix seconds; None if the chain has no such block any more.

        The time is cached until a reorg.
        """
        if block not in self._times:
            try:
                self._times[block] = await (await self._connected()).block_time(block)
            except NotFound:
                return None
        return self._times[block]

    async def work(self, key: Digest) -> WorkRecord | None:
        """Returns the ledger's record of a work item; None if it was never submitted."""
        return await (await self._connected()).work.get(key)

    async def submit_work(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Submits work of several nodes in one transaction; returns the refused items."""
        return await (await self._connected()).work.submit_batch(claims)

    async def redeem_invites(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Redeems invites of several nodes in one transaction; returns the refused joins."""
        return await (await self._connected()).pools.join_batch(joins)

    async def open_disputes(self, disputes: Sequence[SignedDispute]) -> list[Refusal]:
        """Opens disputes for nodes, each in its own transaction; returns the refused disputes."""
        found = await asyncio.gather(*(self._open_dispute(each) for each in disputes))
        return [each for each in found if each is not None]

    async def _open_dispute(self, dispute: SignedDispute) -> Refusal | None:
        try:
            await (await self._connected()).work.dispute(
                dispute.key,
                dispute.evidence_hash,
                deadline=expiry_of(dispute),
                node_signature=bytes.fromhex(dispute.signature[2:]),
            )
        except TransactionReverted as error:
            return Refusal(dispute.key, error.name, error.detail)
        return None

    async def joins(self, node: Address) -> int:
        """Returns how often a node has joined the pool, which is the nonce of its leave."""
        return await (await self._connected()).pools.joins(self._pool_id, node)

    async def end_memberships(self, leaves: Sequence[SignedLeave]) -> list[Refusal]:
        """Ends memberships for nodes, each in its own transaction; returns the refused leaves."""
        found = await asyncio.gather(*(self._end_membership(each) for each in leaves))
        return [each for each in found if each is not None]

    async def _end_membership(self, leave: SignedLeave) -> Refusal | None:
        try:
            await (await self._connected()).pools.leave(
                self._pool_id,
                leave.node,
                deadline=expiry_of(leave),
                node_signature=bytes.fromhex(leave.signature[2:]),
            )
        except TransactionReverted as error:
            return Refusal(leave.node, error.name, error.detail)
        return None

    async def registration(self, node: Address) -> tuple[int, Address | None]:
        """Returns the nonce of a node's next consent, and the provider for which the node is registered, if any."""
        registry = (await self._connected()).registry
        nonce, found = await asyncio.gather(registry.consent_nonce(node), registry.node(node))
        return nonce, None if found is None or found.retired else found.provider

    async def register_nodes(self, consents: Sequence[SignedConsents]) -> list[Refusal]:
        """Registers nodes, each in its own transaction; returns the refused consents."""
        found = await asyncio.gather(*(self._register_node(each) for each in consents))
        return [each for each in found if each is not None]

    async def _register_node(self, consents: SignedConsents) -> Refusal | None:
        try:
            await (await self._connected()).registry.register_for(
                provider=consents.provider,
                node=consents.node,
                specs_hash=consents.specs_hash,
                capacity=consents.capacity,
                deadline=expiry_of(consents),
                provider_signature=bytes.fromhex(consents.provider_signature[2:]),
                node_signature=bytes.fromhex(consents.node_signature[2:]),
            )
        except TransactionReverted as error:
            return Refusal(consents.node, error.name, error.detail)
        return None

    async def work_refusals(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Returns the submissions that the ledger would refuse now, from dry runs that cost no gas."""
        work = (await self._connected()).work
        found = await asyncio.gather(*(work.submission_refusal(each) for each in claims))
        return [each for each in found if each is not None]

    async def join_refusals(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Returns the joins that the ledger would refuse now, from dry runs that cost no gas."""
        pools = (await self._connected()).pools
        found = await asyncio.gather(*(pools.join_refusal(each) for each in joins))
        return [each for each in found if each is not None]

    async def events(self) -> RunEvents:
        """Returns events since the last commit."""
        batch = await self._follower.poll(await self._connected())
        if any(event.reverted for event in batch.events):
            self._hashes.clear()
            self._times.clear()
        found = tuple(each for each in self._follower.decode(batch) if self._concerns(each.event))
        return RunEvents(found, lambda: self._follower.commit(batch), more=not self._follower.at_head(batch))

    def forget_position(self) -> None:
        """Makes the next call of `events` read the position from the store again."""
        self._follower.forget_position()

    async def aclose(self) -> None:
        """Closes the connection."""
        self._ledger = None
        await self._stack.aclose()

    async def _connected(self) -> Ledger:
        async with self._connecting:
            if self._ledger is None:
                opening = Ledger.connect(
                    self._chain_url,
                    self._deployment,
                    key=self._relayer,
                    timeout=REQUEST_TIMEOUT,
                    clock=self._clock,
                    policy=self._policy,
                    transport=self._transport,
                )
                self._ledger = await self._stack.enter_async_context(opening)
            return self._ledger

    def _concerns(self, event: LedgerEvent) -> bool:
        """Returns whether an event is of this pool and run, or of no particular pool.

        Work of the pool's other runs counts, too, because its objects are in the pool's store.
        """
        pool_id, run = getattr(event, "pool_id", self._pool_id), getattr(event, "run", self._run)
        return bool(pool_id == self._pool_id and (run == self._run or isinstance(event, WorkSubmitted)))
