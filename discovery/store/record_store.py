"""Records of nodes in Redis: a hash per node, and sorted sets by pool, expiry and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from discovery.store.records import StoredRecord, origin_of
from discovery.store.scripts import ListPage, PruneExpired, RegisterNode, RemoveNode
from protocol.errors import NotFound, RateLimited, Unavailable
from protocol.identifiers import Address, address
from protocol.identity.signing import unix_ms
from protocol.redis.connection import RedisKeys, store_errors
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock
from protocol.wire.nodes import Registration

KEYS = RedisKeys("discovery")
"""Prefix of the Redis keys, which all instances share."""
SCHEMA = 1
"""Version of the data in Redis (docs/compatibility.md)."""

POOL_FULL_AGAIN = timedelta(minutes=1)
"""Time after which a node may retry a registration that was refused because its pool is full (`Retry-After`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """Limits on the number and the lifetime of records."""

    life: timedelta
    """Time until a record expires unless it is refreshed."""
    per_origin: int
    """Maximum number of nodes from one IPv4 address or IPv6 /64 within the lifetime of a record."""
    per_pool: int
    """Maximum number of records of one pool.

    Once the pool has half of them, only nodes that are registered on the ledger may register here. Anybody can create
    keys, so other nodes could otherwise fill the pool.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """One page of a pool's records, ordered by address."""

    records: tuple[StoredRecord, ...]
    last: Address | None
    """Cursor of the next page; None if no records follow.

    If the pool's last record is also the last one that fits on this page, a cursor is set, but the next page is empty.
    """


class RecordStore:
    """Stores node records that expire unless refreshed.

    Args:
        redis: Redis that all instances share.
        limits: Limits on the number and the lifetime of records.
        clock: Source of time.
    """

    def __init__(self, redis: Redis, *, limits: RecordLimits, clock: Clock) -> None:
        self._redis = redis
        self._limits = limits
        self._clock = clock
        self._scripts = ScriptRunner(redis, keys=KEYS)

    async def register(self, node: Address, registration: Registration, *, ip: str, on_ledger: bool) -> StoredRecord:
        """Stores or refreshes a node's registration.

        Args:
            node: Signer of the request.
            registration: Body of the request.
            ip: Source address of the request.
            on_ledger: Whether the node is registered on the ledger. Other nodes are refused once the pool has half of
                its maximum number of records.

        Raises:
            RateLimited: Too many nodes registered from this IP, or the pool has too many records (see `RecordLimits`).
            StoreUnavailable: Redis is down.
        """
        now, life = self._now(), round(self._limits.life.total_seconds() * 1000)
        registered = await self._scripts.run(
            RegisterNode(
                address=node,
                pool=str(registration.pool_id),
                registration=registration.model_dump_json(),
                ip=ip,
                origin=origin_of(ip),
                now_ms=now,
                life_ms=life,
                most_per_origin=self._limits.per_origin,
                most_per_pool=self._limits.per_pool if on_ledger else self._limits.per_pool // 2,
            )
        )
        match registered.refused:
            case "":
                return StoredRecord(
                    address=node,
                    registration=registration,
                    ip=ip,
                    first_seen_ms=registered.first_seen_ms,
                    last_seen_ms=now,
                    expires_at_ms=now + life,
                )
            case "origin":
                wait = timedelta(seconds=max(1, registered.wait_s))
                raise _too_many_from(ip, self._limits.per_origin, wait)
            case "pool":
                raise _pool_full(registration.pool_id, on_ledger=on_ledger)
            case _:
                raise Unavailable(
                    f"the script register_node.lua gave the unknown answer {registered.refused!r}",
                    hint="restart all instances of the service with the same release",
                )

    async def record(self, node: Address) -> StoredRecord:
        """Returns a node's record.

        Raises:
            NotFound: There is none, or it has expired.
        """
        with store_errors():
            values: list[Any] = await self._redis.hmget(KEYS.of("node", node), _FIELDS)
        if all(value is not None for value in values):
            found = {name: value.decode() for name, value in zip(_FIELDS, values, strict=True)}
            record = _parsed(node, found)
            if record.expires_at_ms > self._now():
                return record
        raise not_registered(node)

    async def remove(self, node: Address) -> None:
        """Deletes a node's record and invites; does nothing if there is no record."""
        await self._scripts.run(RemoveNode(address=node))

    async def page(self, pool_id: int, *, after: Address | None, most: int) -> StoredPage:
        """Returns a page of up to `most` records of a pool, without expired ones.

        The call takes O(log n + most) time for a pool of n records.

        Args:
            pool_id: Number of the pool.
            after: Cursor of the page; None for the first page.
            most: Maximum number of records.
        """
        page = await self._scripts.run(ListPage(pool=str(pool_id), after=after or "", limit=most, now_ms=self._now()))
        return StoredPage(
            records=tuple(_parsed(address(fields["address"]), fields) for fields in page.records),
            last=address(page.last) if page.last else None,
        )

    async def prune(self, most: int = 1000) -> int:
        """Deletes at most `most` expired records; returns their number."""
        return await self._scripts.run(PruneExpired(now_ms=self._now(), limit=most))

    async def count(self) -> int:
        """Returns the number of records."""
        with store_errors():
            count: int = await self._redis.zcard(_EXPIRY)
        return count

    def _now(self) -> int:
        return unix_ms(self._clock.now())


_EXPIRY = KEYS.of("expiry")


_FIELDS = ("registration", "ip", "first", "last", "expires")


def _parsed(node: Address, fields: Mapping[str, str]) -> StoredRecord:
    return StoredRecord(
        address=node,
        registration=Registration.model_validate_json(fields["registration"]),
        ip=fields["ip"],
        first_seen_ms=int(fields["first"]),
        last_seen_ms=int(fields["last"]),
        expires_at_ms=int(fields["expires"]),
    )


def not_registered(node: Address) -> NotFound:
    """Returns the error for a node without a record."""
    return NotFound(f"{node} is not registered here", hint="register first: records expire unless refreshed")


def _too_many_from(ip: str, most: int, wait: timedelta) -> RateLimited:
    error = RateLimited(
        f"{most} nodes were seen from {ip} already",
        retry_after=wait,
        hint="wait until one of them has expired, or ask the operator to raise nodes_per_ip",
    )
    error.code = "too-many-nodes"
    return error


def _pool_full(pool_id: int, *, on_ledger: bool) -> RateLimited:
    hint = "wait until records expire" if on_ledger else "register the node on the ledger first: room is kept for those"
    error = RateLimited(f"pool {pool_id} has no room for more records here", retry_after=POOL_FULL_AGAIN, hint=hint)
    error.code = "pool-full"
    return error
