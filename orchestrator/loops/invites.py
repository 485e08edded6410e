"""Reads one discovery service, and invites whoever may come. Each service has a loop of its own, so none waits."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

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
from protocol.runtime.clock import Clock
from protocol.wire.heartbeat import NodeState
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodeRecord

PAGE = 100
AT_ONCE = 8
"""Nodes of a page that are looked at together: the ledger is asked about each."""

MOST_NOTED = 20_000
"""Nodes that may not be invited are noted, with the reason, while the pool knows fewer than this. Whoever floods
discovery with addresses that no provider stands behind fills this list and nothing else."""

DISK_STEP = 1 << 30
"""Free disk is kept in whole GiB, or every page would change every node."""

NEW_FOR = timedelta(seconds=10)
"""Time that a new member has for its first heartbeat before it is sent another invite with our URL."""

MOST_TOLD = 65_536

LONGEST_PAUSE = timedelta(hours=1)
"""Between two invites for a member that stays silent. The pause doubles from the life of one invite."""

_SILENT = frozenset({NodeState.UNHEALTHY, NodeState.DEAD})
_INVITABLE = frozenset({NodeState.DISCOVERED, NodeState.DEAD, NodeState.EVICTED})

_log = structlog.get_logger(__name__)


class Inviter:
    """One reading of one discovery service.

    Args:
        parts: The orchestrator's.
        client: Of the service.
        lease: Of this loop.
    """

    def __init__(self, parts: Dependencies, *, client: DiscoveryClient, lease: LeaderLease) -> None:
        self._parts = parts
        self._client = client
        self._lease = lease
        self._life = timedelta(seconds=parts.settings.invite_life_s)
        self._for_newcomers = _Bucket(parts.settings.invites_per_minute, clock=parts.clock)
        self._for_members = _Bucket(parts.settings.invites_per_minute, clock=parts.clock)
        """Of its own: members that stay silent leave no fewer invites for new nodes."""
        self._told: OrderedDict[Address, _Told] = OrderedDict()

    async def round(self) -> int:
        """Reads every page; returns how many invites were left.

        Raises:
            Unavailable: The service, or the chain, is down; what was done before stays done.
        """
        if not await self._lease.hold():
            return 0
        invited, cursor = 0, None
        while True:
            page = await self._client.page(self._parts.settings.pool_id, cursor=cursor, limit=PAGE)
            invited += await self._look_at(page.nodes)
            if page.next_cursor is None or page.next_cursor == cursor or not await self._lease.hold():
                return invited
            cursor = page.next_cursor

    async def _look_at(self, records: Sequence[NodeRecord]) -> int:
        rows = await self._parts.nodes.get_many([record.address for record in records])
        turns = asyncio.Semaphore(AT_ONCE)
        down: list[Unavailable] = []

        async def one(record: NodeRecord, row: NodeRow) -> bool:
            async with turns:
                if down:
                    return False
                try:
                    return await self._consider(record, row)
                except Unavailable as error:
                    down.append(error)
                except MusterError as error:
                    # One node that can't be invited (its record expired meanwhile) delays no other.
                    _log.info("not-invited", node=record.address, code=error.code, reason=error.detail)
                return False

        invited = sum(await asyncio.gather(*(one(record, row) for record, row in zip(records, rows, strict=True))))
        if down:
            raise down[0]
        return invited

    async def _consider(self, record: NodeRecord, row: NodeRow) -> bool:
        parts, node = self._parts, record.address
        facts = _facts(record)
        if row.revision:
            await parts.nodes.learn(node, facts)
        if row.member:
            return await self._tell_where(record, row)
        if row.state not in _INVITABLE or not self._rested(row):
            return False
        reason = await self._why_not(record)
        if reason is not None:
            if not row.revision and await parts.nodes.count() < MOST_NOTED:
                await parts.life.happened(node, NodeEvent.LISTED, cause=reason, actor="discovery", fields=facts)
            elif row.revision and row.state is NodeState.DISCOVERED:
                await parts.nodes.learn(node, {"reason": reason})
            return False
        if not self._for_newcomers.take():
            return False
        cause = "discovery lists it, and it has what the pool asks for"
        _, result = await parts.life.happened(node, NodeEvent.SEEN, cause=cause, actor="discovery", fields=facts)
        if NodeAction.INVITE not in result.actions:
            return False
        await self._post(record)
        await parts.life.happened(
            record.address,
            NodeEvent.INVITE_POSTED,
            cause=f"an invite waits for it at {self._client.location.url} until it expires in {self._life}",
            actor=parts.key.address,
        )
        return True

    async def _tell_where(self, record: NodeRecord, row: NodeRow) -> bool:
        """Leaves an invite for a member that discovery hears and we don't: it may not know our present URL.

        One invite at a time waits for a node, and the pause before the next one doubles up to an hour. It changes
        nothing in the node's life: the ledger takes no invite of a member.
        """
        now = self._parts.clock.monotonic()
        joined_for_ms = unix_ms(self._parts.clock.now()) - row.since_ms
        new = row.seen_ms is None and joined_for_ms < NEW_FOR.total_seconds() * 1000
        if row.state not in _SILENT:
            self._told.pop(record.address, None)
            return False
        told = self._told.get(record.address)
        if new or (told is not None and now < told.again_at) or not self._for_members.take():
            return False
        await self._post(record)
        pause = self._life if told is None else min(2 * told.pause, max(LONGEST_PAUSE, self._life))
        self._told[record.address] = _Told(again_at=now + pause.total_seconds(), pause=pause)
        self._told.move_to_end(record.address)
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
        _log.info("member-told-where-we-are", node=record.address, url=self._parts.settings.public_url)
        return True

    async def _why_not(self, record: NodeRecord) -> str | None:
        parts, registration = self._parts, record.registration
        missing = lacks(registration.hardware, dict(registration.labels), parts.settings.requirements)
        if missing is not None:
            return missing
        standing = await parts.standings.of(record.address)
        if standing.member:
            return "it is a member already; the orchestrator has yet to read that on the ledger"
        return refusal(standing, await parts.pool.get())

    async def _post(self, record: NodeRecord) -> None:
        parts = self._parts
        settings, domain = parts.settings, parts.ledger.domain
        invite = Invite(
            pool_id=settings.pool_id,
            domain_id=(await parts.pool.get()).domain_id,
            node=record.address,
            nonce=secrets.randbits(128),
            expiry=int((parts.clock.now() + self._life).timestamp()),
            url=settings.public_url,
        )
        signature = invite.sign(parts.key, domain)
        # It may join at any moment now, and its first word should find it a member.
        parts.standings.forget(record.address)
        await self._client.invite(SignedInvite.of(invite, domain=domain, signature=signature))

    def _rested(self, row: NodeRow) -> bool:
        if row.state is not NodeState.EVICTED:
            return True
        return unix_ms(self._parts.clock.now()) - row.since_ms >= self._parts.settings.eviction_rest_s * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """An invite that was left for a silent member.

    Args:
        again_at: When the next one may be left, on the monotonic clock.
        pause: Time between the two.
    """

    again_at: float
    pause: timedelta


class _Bucket:
    """Fills with the allowed rate up to one minute's worth: a flood of records does not become one of signatures."""

    def __init__(self, per_minute: float, *, clock: Clock) -> None:
        self._per_minute = per_minute
        self._most = max(1.0, per_minute)
        self._clock = clock
        self._left = self._most
        self._at = clock.monotonic()

    def take(self) -> bool:
        """Takes one; returns false if there is none."""
        now = self._clock.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_minute / 60)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def _facts(record: NodeRecord) -> dict[str, str]:
    hardware = record.registration.hardware
    rounded = hardware.model_copy(update={"disk_free_bytes": hardware.disk_free_bytes // DISK_STEP * DISK_STEP})
    labels = {name: record.registration.labels[name] for name in sorted(record.registration.labels)}
    facts = {
        "hardware": rounded.model_dump_json(),
        "software": record.registration.software.model_dump_json(),
        "labels": json.dumps(labels),
    }
    return facts | ({"provider": record.provider} if record.provider else {})
