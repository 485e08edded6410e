"""Store of each validator's records of nodes, which determine how many of a node's rows the validator recomputes.

Acceptances count only if this validator gave them; rejections and forgery verdicts of all validators count. So a
corrupt validator that accepts everything does not reduce the audits of other validators. Forged work of one node counts
against all nodes of its provider, because registering a new node is free. All data comes from the ledger's events in
their order, so it can be rebuilt from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.asyncio import Redis

from protocol.identifiers import Address, Digest
from protocol.identity.signing import unix_ms
from protocol.redis.connection import RedisKeys, store_errors
from protocol.verdicts import Outcome
from validator.audit.rate import NEW, AuditRecord, after

MOST_RECENT = 64
"""Number of a node's newest verdicts that are stored one by one, so that a dispute can still replace them.

Older verdicts are only counted.
"""

KEPT = timedelta(days=90)
"""Time without verdicts after which a record is deleted, so that the node counts as new."""

MOST_FORGERIES = 64
"""Maximum number of a provider's forged submissions that are stored.

Only the newest forgery affects the audits; the older ones are stored in case disputes overturn the newer ones.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One verdict on the ledger.

    Args:
        key: The work key.
        outcome: Outcome of the verdict; after a dispute, its final outcome.
        own: True if this validator gave the verdict.
        at: Time of the verdict's block; for an acceptance the value is arbitrary, because no code uses it.
        place: Block and log index of the verdict's event.
    """

    key: Digest
    outcome: Outcome
    own: bool
    at: datetime
    place: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    outcome: int
    at_ms: int
    block: int = 0
    """Block of the verdict; 0 in records that an earlier release wrote."""


@dataclass(frozen=True, slots=True)
class _History:
    """A node's verdicts: the older ones as a summary, the newest ones one by one."""

    old: AuditRecord = NEW
    """Summary of the older verdicts."""
    recent: tuple[_Entry, ...] = ()
    """The newest verdicts, oldest first."""
    through: tuple[int, int] = (-1, -1)
    """Block and log index of the last verdict that was added to the record."""

    def record(self, forgery: _Forgery | None) -> AuditRecord:
        """Returns the node's audit record.

        Args:
            forgery: Newest forged work of a node of the same provider; None if there is none.
        """
        own = _folded(self.old, self.recent)
        if forgery is None or (own.failed_at is not None and own.failed_at >= forgery.at):
            return own
        since = sum(entry.outcome == Outcome.ACCEPTED and entry.block > forgery.block for entry in self.recent)
        if since >= MOST_RECENT:
            return own  # all verdicts that are stored one by one are clean and came after the forgery
        return replace(own, clean=since, provider_forged_at=forgery.at)


@dataclass(frozen=True, slots=True, order=True)
class _Forgery:
    """Verdict that judged work of a provider's node forged; forgeries are compared by their order on the ledger."""

    block: int
    at_ms: int

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


class NodeRecords:
    """The verdict records that one validator keeps.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
        validator: Address of the validator; other validators on the same Redis keep their own records.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, validator: Address) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._keys = keys
        self._validator = validator

    async def of(self, node: Address, *, provider: Address | None = None) -> AuditRecord:
        """Returns a node's audit record; for an unknown node, the record of a new node.

        Args:
            node: Address of the node.
            provider: Address of the node's provider, so that forged work of the provider's other nodes counts, too;
                None to count only the node's own work.

        Raises:
            StoreUnavailable: Redis is down.
        """
        with store_errors():
            history = _load(await self._redis.get(self._key(node)))
            forged = {} if provider is None else await self._redis.hgetall(self._forgeries(provider))
        return history.record(max(map(_forgery, forged.values()), default=None))

    async def note_provider(self, provider: Address, verdicts: Sequence[Judged]) -> None:
        """Stores forged work of a provider's nodes, and removes work that the end of a dispute cleared.

        Args:
            provider: Address of the nodes' provider.
            verdicts: Verdicts in the order of the ledger; a repeated verdict changes nothing.

        Raises:
            StoreUnavailable: Redis is down.
        """
        name = self._forgeries(provider)
        with store_errors():
            for verdict in verdicts:
                if verdict.outcome is Outcome.FORGED:
                    await self._redis.hset(name, verdict.key, f"{verdict.place[0]}:{unix_ms(verdict.at)}")
                else:
                    await self._redis.hdel(name, verdict.key)
            forged = await self._redis.hgetall(name)
            if len(forged) > MOST_FORGERIES:
                oldest = sorted(forged, key=lambda key: _forgery(forged[key]))
                await self._redis.hdel(name, *oldest[: len(forged) - MOST_FORGERIES])
            await self._redis.expire(name, int(KEPT.total_seconds()))

    async def note(self, node: Address, verdicts: Sequence[Judged]) -> None:
        """Adds verdicts on a node's work to its record.

        Args:
            node: Address of the node.
            verdicts: Verdicts in the order of the ledger; a repeated verdict changes nothing.

        Raises:
            StoreUnavailable: Redis is down.
        """
        name = self._key(node)

        async def change(line: Any) -> None:  # noqa: ANN401 - untyped in redis-py
            before = _load(await line.get(name))
            now = before
            for verdict in verdicts:
                now = _with(now, verdict)
            line.multi()
            if now != before:
                line.set(name, _dump(now), ex=int(KEPT.total_seconds()))

        with store_errors():
            await self._redis.transaction(change, name)

    def _key(self, node: Address) -> str:
        return self._keys.of("record", self._validator, node)

    def _forgeries(self, provider: Address) -> str:
        return self._keys.of("forgeries", self._validator, provider)


def _forgery(text: bytes) -> _Forgery:
    block, _, at_ms = text.decode().partition(":")
    return _Forgery(int(block), int(at_ms))


def _with(history: _History, verdict: Judged) -> _History:
    if verdict.place <= history.through:
        return history
    clean = verdict.outcome is Outcome.ACCEPTED
    outcome = verdict.outcome if verdict.own or not clean else 0  # 0: another validator's acceptance does not count
    entry = _Entry(verdict.key, outcome, unix_ms(verdict.at), verdict.place[0])
    recent, known = list(history.recent), [each.key for each in history.recent]
    if verdict.key in known:  # a verdict that ended a dispute replaces the first verdict
        recent[known.index(verdict.key)] = entry
    elif entry.outcome:
        recent.append(entry)
    spare = max(0, len(recent) - MOST_RECENT)
    return _History(_folded(history.old, recent[:spare]), tuple(recent[spare:]), verdict.place)


def _folded(record: AuditRecord, entries: Sequence[_Entry]) -> AuditRecord:
    for entry in entries:
        if entry.outcome:
            record = after(record, Outcome(entry.outcome), at=datetime.fromtimestamp(entry.at_ms / 1000, UTC))
    return record


def _dump(history: _History) -> str:
    failed = history.old.failed_at
    return json.dumps(
        {
            "clean": history.old.clean,
            "failed": None if failed is None else unix_ms(failed),
            "recent": [[each.key, each.outcome, each.at_ms, each.block] for each in history.recent],
            "through": history.through,
        }
    )


def _load(text: bytes | None) -> _History:
    if text is None:
        return _History()
    values = json.loads(text)
    failed = values["failed"]
    at = None if failed is None else datetime.fromtimestamp(failed / 1000, UTC)
    return _History(
        AuditRecord(clean=values["clean"], failed_at=at),
        tuple(_Entry(*each) for each in values["recent"]),
        (values["through"][0], values["through"][1]),
    )
