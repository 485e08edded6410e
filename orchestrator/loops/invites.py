"""Loop that reads the nodes of one discovery service and invites the eligible ones.

Each discovery service has a loop of its own, so that a slow service does not delay the others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cachetools import LRUCache

from orchestrator.dependencies import Dependencies
from orchestrator.domain.node_states import NodeAction, NodeEvent
from orchestrator.nodes.eligibility import lacks, refusal
from orchestrator.store.nodes import NodeRow
from protocol.clients.discovery import DiscoveryClient
from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.invites import Invite
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import DAY_MS, Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import randbits
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodeRecord, NodeState

PAGE = 100
CONCURRENT_CHECKS = 8
"""Maximum number of nodes that are checked concurrently; each check reads the ledger."""

MAX_INELIGIBLE = 20_000
"""An ineligible node is stored, with the reason, only while the pool knows fewer nodes than this number.

So a flood of addresses without a provider can fill at most this many rows.
"""

DISK_STEP = 1 << 30
"""Free disk space is stored in multiples of this (1 GiB). Otherwise nearly every read of a node would write its row."""

FIRST_HEARTBEAT_WITHIN = timedelta(seconds=10)
"""Time for a new member's first heartbeat. After this time, the member gets another invite with the orchestrator's
URL."""

MAX_REMINDERS = 65_536
"""Maximum number of members for which the time of the last reminder is kept in memory."""

LONGEST_PAUSE = timedelta(hours=1)
"""Longest pause between two invites for a silent member. The first pause is an invite's lifetime; each further pause
is twice as long."""

_SILENT = frozenset({NodeState.UNHEALTHY, NodeState.DEAD})
_INVITABLE = frozenset({NodeState.DISCOVERED, NodeState.DEAD, NodeState.EVICTED})

_log = get_logger(__name__)


class Inviter:
    """Invites the eligible nodes that one discovery service lists.

    Args:
        dependencies: The orchestrator's dependencies.
        client: Client of the discovery service.
        lease: The leader lease of this loop.
    """

    def __init__(self, dependencies: Dependencies, *, client: DiscoveryClient, lease: LeaderLease) -> None:
        self._dependencies = dependencies
        self._client = client
        self._lease = lease
        self._invite_lifetime = timedelta(seconds=dependencies.settings.invite_life_s)
        self._new_node_bucket = _TokenBucket(dependencies.settings.invites_per_minute, clock=dependencies.clock)
        self._member_bucket = _TokenBucket(dependencies.settings.invites_per_minute, clock=dependencies.clock)
        """Limits invites for silent members. It is separate, so that they don't use up the quota of new nodes."""
        self._reminders: LRUCache[Address, _Reminder] = LRUCache(MAX_REMINDERS)

    async def round(self) -> int:
        """Checks all nodes that the service lists; returns the number of posted invites.

        Raises:
            Unavailable: The service or the chain is down; invites that were already posted stay valid.
        """
        if not await self._lease.hold():
            return 0
        invited, cursor = 0, None
        while True:
            page = await self._client.page(self._dependencies.settings.pool_id, cursor=cursor, limit=PAGE)
            invited += await self._check_page(page.nodes)
            if page.next_cursor is None or page.next_cursor == cursor or not await self._lease.hold():
                return invited
            cursor = page.next_cursor

    async def _check_page(self, records: Sequence[NodeRecord]) -> int:
        rows = await self._dependencies.nodes.get_many([record.address for record in records])
        concurrent = asyncio.Semaphore(CONCURRENT_CHECKS)
        down: list[Unavailable] = []

        async def one(record: NodeRecord, row: NodeRow) -> bool:
            async with concurrent:
                if down:
                    return False
                try:
                    return await self._check_node(record, row)
                except Unavailable as error:
                    down.append(error)
                except MusterError as error:
                    # A node that can't be invited, such as one whose record has expired, must not stop the others.
                    _log.info("not-invited", node=record.address, code=error.code, reason=error.detail)
                return False

        invited = sum(await asyncio.gather(*(one(record, row) for record, row in zip(records, rows, strict=True))))
        if down:
            raise down[0]
        return invited

    async def _check_node(self, record: NodeRecord, row: NodeRow) -> bool:
        """Updates a node's row, and posts an invite if one is due; returns whether it posted one."""
        dependencies, node = self._dependencies, record.address
        facts = _facts(record, day=unix_ms(dependencies.clock.now()) // DAY_MS)
        if row.revision:
            await dependencies.nodes.learn(node, facts)
        if row.member:
            return await self._remind_member(record, row)
        if row.state not in _INVITABLE or not self._may_return(row):
            return False
        reason = await self._ineligible(record)
        if reason is not None:
            if not row.revision and await dependencies.nodes.count() < MAX_INELIGIBLE:
                await dependencies.transitions.apply(
                    node, NodeEvent.LISTED, cause=reason, actor="discovery", fields=facts
                )
            elif row.revision and row.state is NodeState.DISCOVERED:
                await dependencies.nodes.learn(node, {"reason": reason})
            return False
        if not self._new_node_bucket.take():
            return False
        cause = "discovery lists it, and it meets the pool's requirements"
        _, result = await dependencies.transitions.apply(
            node, NodeEvent.SEEN, cause=cause, actor="discovery", fields=facts
        )
        if NodeAction.INVITE not in result.actions:
            return False
        await self._post(record)
        await dependencies.transitions.apply(
            record.address,
            NodeEvent.INVITE_POSTED,
            cause=f"an invite waits for it at {self._client.location.url} and is valid for {self._invite_lifetime}",
            actor=dependencies.key.address,
        )
        return True

    async def _remind_member(self, record: NodeRecord, row: NodeRow) -> bool:
        """Posts an invite for a member that polls discovery but sends no heartbeats.

        Such a member may have missed a change of the orchestrator's URL, which the invite contains. The pause before
        the next invite for the same member doubles, up to an hour. The node's state does not change, because the ledger
        refuses invites of members.
        """
        now = self._dependencies.clock.monotonic()
        joined_for_ms = unix_ms(self._dependencies.clock.now()) - row.since_ms
        new = row.seen_ms is None and joined_for_ms < FIRST_HEARTBEAT_WITHIN.total_seconds() * 1000
        if row.state not in _SILENT:
            self._reminders.pop(record.address, None)
            return False
        last = self._reminders.get(record.address)
        if new or (last is not None and now < last.next_at) or not self._member_bucket.take():
            return False
        await self._post(record)
        pause = (
            self._invite_lifetime if last is None else min(2 * last.pause, max(LONGEST_PAUSE, self._invite_lifetime))
        )
        self._reminders[record.address] = _Reminder(next_at=now + pause.total_seconds(), pause=pause)
        _log.info("member-reminded-of-url", node=record.address, url=self._dependencies.settings.public_url)
        return True

    async def _ineligible(self, record: NodeRecord) -> str | None:
        """Returns the reason why a node gets no invite; None if it is eligible."""
        dependencies, registration = self._dependencies, record.registration
        missing = lacks(registration.hardware, dict(registration.labels), dependencies.settings.requirements)
        if missing is not None:
            return missing
        status = await dependencies.status_cache.of(record.address)
        if status.member:
            return "it is a member already; the orchestrator has not read its join from the ledger yet"
        return refusal(status, await dependencies.pool.get())

    async def _post(self, record: NodeRecord) -> None:
        dependencies = self._dependencies
        settings, domain = dependencies.settings, dependencies.ledger.domain
        invite = Invite(
            pool_id=settings.pool_id,
            domain_id=(await dependencies.pool.get()).domain_id,
            node=record.address,
            nonce=randbits(128),
            expiry=int((dependencies.clock.now() + self._invite_lifetime).timestamp()),
            url=settings.public_url,
        )
        signature = invite.sign(dependencies.key, domain)
        # The node may join from now on. The cached answer that it is not a member would reject its first heartbeat.
        dependencies.status_cache.forget(record.address)
        await self._client.invite(SignedInvite.of(invite, domain=domain, signature=signature))

    def _may_return(self, row: NodeRow) -> bool:
        """Returns False for a node that was evicted less than `eviction_rest_s` ago."""
        if row.state is not NodeState.EVICTED:
            return True
        return (
            unix_ms(self._dependencies.clock.now()) - row.since_ms >= self._dependencies.settings.eviction_rest_s * 1000
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reminder:
    """The last invite that was posted for a silent member.

    Args:
        next_at: Time from which the next invite may be posted, in seconds of the monotonic clock.
        pause: Time between the last invite and the next one.
    """

    next_at: float
    pause: timedelta


class _TokenBucket:
    """Token bucket that limits invites per minute.

    Each invite costs a signature and a request.
    """

    def __init__(self, per_minute: float, *, clock: Clock) -> None:
        self._per_minute = per_minute
        self._capacity = max(1.0, per_minute)
        self._clock = clock
        self._tokens = self._capacity
        self._filled_at = clock.monotonic()

    def take(self) -> bool:
        """Takes a token; returns False if there is none."""
        now = self._clock.monotonic()
        self._tokens = min(self._capacity, self._tokens + (now - self._filled_at) * self._per_minute / 60)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _facts(record: NodeRecord, *, day: int) -> dict[str, str]:
    """Returns the fields of a node's row that come from its record in discovery.

    Args:
        record: The record.
        day: Present day, as days since 1970 in UTC. The row states when discovery listed the node only by day, so that
            a listing seldom changes the row.
    """
    hardware = record.registration.hardware
    rounded = hardware.model_copy(update={"disk_free_bytes": hardware.disk_free_bytes // DISK_STEP * DISK_STEP})
    labels = {name: record.registration.labels[name] for name in sorted(record.registration.labels)}
    facts = {
        "hardware": rounded.model_dump_json(),
        "software": record.registration.software.model_dump_json(),
        "labels": json.dumps(labels),
        "listed": str(day),
    }
    return facts | ({"provider": record.provider} if record.provider else {})
