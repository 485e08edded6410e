"""The run on the ledger: announcements, work and money. Connects on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

from cachetools import LRUCache
from redis.asyncio import Redis

from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client import pools as pool_client
from ledger.client import work as work_client
from ledger.client.pools import Pool, PoolStatus, Role, Terms
from ledger.client.work import WorkStatus
from ledger.deployment import Deployment
from ledger.errors import CursorTooOld, TransactionReverted
from ledger.events.cursor import EventBatch, EventCursor
from ledger.events.cursor_stores import RedisCursorStore
from ledger.events.decoder import EventDecoder, topic_of
from ledger.events.source import Web3Events
from ledger.events.types import CheckpointAnnounced
from ledger.transactions.pending import SendPolicy
from ledger.transactions.receipts import EventLog
from orchestrator.chain.run_events import FOLLOWED, to_run_event
from orchestrator.chain.run_interface import (
    AnnouncedCheckpoint,
    Funds,
    LedgerRefusal,
    PoolSeat,
    RunEvent,
    RunEvents,
    WorkNow,
    error_name,
    holds_until,
)
from orchestrator.domain.slots import SlotState
from protocol.errors import NotFound
from protocol.identifiers import ZERO_ADDRESS, Address, Digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import RedisKeys, store_errors
from protocol.runtime.clock import Clock
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinRequest, SignedDispute

REQUEST_TIMEOUT = timedelta(seconds=5)
"""Time limit of one JSON-RPC request."""
TERMS_CACHED_FOR = timedelta(seconds=8)
"""How long terms and status are cached. They change seldom, unlike funds, which change with each work item.

Shorter than the ten seconds between two regular readings of the funds, which so read the terms too.
"""
MAX_HASHES = 1024
"""Block hashes that are cached."""

_STATES = {
    WorkStatus.SUBMITTED: SlotState.SUBMITTED,
    WorkStatus.PROVISIONAL: SlotState.PROVISIONAL,
    WorkStatus.DISPUTED: SlotState.DISPUTED,
    WorkStatus.FINAL: SlotState.FINAL,
    WorkStatus.EXPIRED: SlotState.EXPIRED,
}


class LedgerRun:
    """One run of one pool over JSON-RPC; a `RunLedger`.

    Args:
        chain_url: JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        pool_id: The pool.
        run: Digest of the run.
        relayer: Key that sends relayed transactions and pays their gas.
        redis: Stores the position in the events, for all orchestrators of the pool.
        confirmations: Blocks on top of a block before it counts.
        clock: Clock of caches and time limits.
        poll: Interval at which the receipts of sent transactions are polled.
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
    ) -> None:
        self._chain_url = chain_url
        self._deployment = deployment
        self._pool_id = pool_id
        self._run = run
        self._relayer = relayer
        self._confirmations = confirmations
        self._clock = clock
        self._policy = SendPolicy(poll=poll)
        # The cursor is named after the run, so that another run reads from the beginning.
        self._name = f"run-{run[2:18]}"
        self._positions = RedisCursorStore(redis, prefix=RedisKeys(f"pool-{pool_id}").prefix + "cursor:")
        self._decoder = EventDecoder(deployment)
        self._stack = AsyncExitStack()
        self._ledger: Ledger | None = None
        self._connecting = asyncio.Lock()
        self._cursor: EventCursor | None = None
        self._hashes: LRUCache[int, Digest] = LRUCache(MAX_HASHES)
        self._standing: tuple[float, Pool, Terms] | None = None

    @property
    def domain(self) -> SigningDomain:
        """EIP-712 domain of the contract that accepts work."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.WORK_LEDGER])

    async def announced(self, version: int | None = None) -> AnnouncedCheckpoint | None:
        """Returns the newest attempt of a version, or of the newest version."""
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
        """Returns the key that announced a version; the publisher's former key counts during rotation."""
        ledger = await self._connected()
        seat = await ledger.pools.seat(self._pool_id, Role.PUBLISHER)
        if seat.previous == ZERO_ADDRESS or seat.previous_until <= await ledger.now():
            return seat.holder
        named = (announced.version, announced.attempt, announced.digest)
        for event in await ledger.history(
            CheckpointAnnounced, pool_id=self._pool_id, second=self._run, since=announced.block
        ):
            if (event.version, event.attempt, event.digest) == named:
                sender = await ledger.sender_of(event.log.transaction)
                return sender if sender == seat.previous else seat.holder
        return seat.holder

    async def funds(self) -> Funds:
        """Returns the pool's present funds; terms and status are cached for a short time."""
        ledger, now = await self._connected(), self._clock.monotonic()
        pools = ledger.pools
        if self._standing is None or self._standing[0] <= now:
            pool, terms = await asyncio.gather(pools.get(self._pool_id), pools.terms(self._pool_id))
            self._standing = now + TERMS_CACHED_FOR.total_seconds(), pool, terms
        _, pool, terms = self._standing
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
        """Returns a provider's stake that neither memberships nor open work bind."""
        return (await (await self._connected()).stake.of(provider)).free

    async def seat(self, node: Address) -> PoolSeat | None:
        """Returns the membership of a node; None if it is no member."""
        found = await (await self._connected()).pools.membership(self._pool_id, node)
        return None if found is None else PoolSeat(provider=found.provider, block=found.joined_block)

    async def held_until(self, node: Address) -> int:
        """Returns the latest expiry of leases that a former member may still use, in Unix seconds; 0 for none."""
        return await (await self._connected()).pools.held_until(self._pool_id, node)

    async def block_hash(self, block: int) -> Digest | None:
        """Returns the hash of a block with the pool's confirmations; cached until a reorg."""
        if block in self._hashes:
            return self._hashes[block]
        ledger = await self._connected()
        if await ledger.block() < block + self._confirmations:
            return None
        try:
            found = await ledger.block_hash(block)
        except NotFound:
            return None
        self._hashes[block] = found
        return found

    async def work(self, key: Digest) -> WorkNow | None:
        """Returns the state of a work item; None if it was never submitted."""
        found = await (await self._connected()).work.get(key)
        if found is None:
            return None
        return WorkNow(
            state=_STATES[found.status],
            sha256=found.sha256,
            units=found.units,
            outcome=found.outcome,
            reason=found.reason,
        )

    async def submit_work(self, works: Sequence[SignedWorkClaim]) -> list[LedgerRefusal]:
        """Submits work for its nodes, in one transaction."""
        refused = await (await self._connected()).work.submit_batch([_submission(each) for each in works])
        return [_work_refusal(each) for each in refused]

    async def submit_joins(self, joins: Sequence[JoinRequest]) -> list[LedgerRefusal]:
        """Redeems invites for their nodes, in one transaction."""
        refused = await (await self._connected()).pools.join_batch([_joining(each) for each in joins])
        return [_join_refusal(each) for each in refused]

    async def submit_disputes(self, disputes: Sequence[SignedDispute]) -> list[LedgerRefusal]:
        """Opens disputes for their nodes, a transaction each."""
        found = await asyncio.gather(*(self._submit_dispute(each) for each in disputes))
        return [each for each in found if each is not None]

    async def _submit_dispute(self, dispute: SignedDispute) -> LedgerRefusal | None:
        try:
            await (await self._connected()).work.dispute(
                dispute.key,
                dispute.evidence_hash,
                deadline=holds_until(dispute),
                node_signature=bytes.fromhex(dispute.signature[2:]),
            )
        except TransactionReverted as error:
            return LedgerRefusal(dispute.key, error.name, error.detail)
        return None

    async def work_refusals(self, works: Sequence[SignedWorkClaim]) -> list[LedgerRefusal]:
        """Returns the submissions that the ledger would refuse now."""
        book = (await self._connected()).work
        found = await asyncio.gather(*(book.refusal_of(_submission(each)) for each in works))
        return [_work_refusal(each) for each in found if each is not None]

    async def join_refusals(self, joins: Sequence[JoinRequest]) -> list[LedgerRefusal]:
        """Returns the joins that the ledger would refuse now."""
        pools = (await self._connected()).pools
        found = await asyncio.gather(*(pools.join_refusal_of(_joining(each)) for each in joins))
        return [_join_refusal(each) for each in found if each is not None]

    async def events(self) -> RunEvents:
        """Returns events since the last commit."""
        ledger = await self._connected()
        cursor = self._cursor = self._cursor or self._new_cursor(ledger)
        batch = await self._polled(cursor)
        if any(event.reverted for event in batch.events):
            self._hashes.clear()
        found = [read for event in batch.events if (read := self._read(event.log, reverted=event.reverted))]

        async def commit() -> None:
            with store_errors():
                await cursor.commit(batch)

        more = batch.position.next_block <= batch.head - self._confirmations
        return RunEvents(tuple(found), commit, more)

    def forget_position(self) -> None:
        """Reads the position from the store again."""
        self._cursor = None

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
                )
                self._ledger = await self._stack.enter_async_context(opening)
            return self._ledger

    def _new_cursor(self, ledger: Ledger) -> EventCursor:
        source = Web3Events(
            ledger.web3,
            addresses=[self._deployment[contract] for contract in FOLLOWED],
            topics=[topic_of(kind) for kinds in FOLLOWED.values() for kind in kinds],
        )
        return EventCursor(
            source,
            name=self._name,
            store=self._positions,
            start_block=self._deployment.block,
            confirmations=self._confirmations,
            clock=self._clock,
        )

    async def _polled(self, cursor: EventCursor) -> EventBatch:
        try:
            with store_errors():
                return await cursor.poll()
        except CursorTooOld:
            # The chain was restarted, or a reorg was deeper than the stored history: all events are read again.
            self._cursor = None
            with store_errors():
                await self._positions.save(self._name, b"")
            raise

    def _read(self, log: EventLog, *, reverted: bool) -> RunEvent | None:
        event = self._decoder.decode(log)
        if event is None or getattr(event, "pool_id", self._pool_id) != self._pool_id:
            return None
        if getattr(event, "run", self._run) != self._run:
            return None
        return to_run_event(event, reverted=reverted)


def _submission(work: SignedWorkClaim) -> work_client.Submission:
    return work_client.Submission(
        lease=work.lease.lease,
        lease_signature=work.lease.raw_signature,
        sha256=work.sha256,
        units=work.units,
        node_signature=work.raw_signature,
    )


def _joining(join: JoinRequest) -> pool_client.SignedJoin:
    return pool_client.SignedJoin(
        join.invite.invite, join.invite.raw_signature, node_signature=bytes.fromhex(join.signature[2:])
    )


def _work_refusal(refusal: work_client.Refusal) -> LedgerRefusal:
    return LedgerRefusal(refusal.key, error_name(refusal.reason), refusal.reason)


def _join_refusal(refusal: pool_client.JoinRefusal) -> LedgerRefusal:
    return LedgerRefusal(refusal.node, error_name(refusal.reason), refusal.reason)
