"""Records in Redis: a hash per node, and sorted sets by pool, by expiry and by origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from discovery.store.records import StoredRecord, origin_of
from discovery.store.scripts import PRUNE, script
from protocol.errors import NotFound, RateLimited, Unavailable
from protocol.identifiers import Address, address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.redis import RedisKeys, store_errors
from protocol.wire.nodes import Registration

KEYS = RedisKeys("discovery")
"""Key prefix shared by all instances on one Redis."""

POOL_FULL_AGAIN = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """Limits on the number and life of records."""

    life: timedelta
    """Time until a record expires unless it is refreshed."""
    per_origin: int
    """Nodes per IPv4 address or IPv6 /64 within a record's life."""
    per_pool: int
    """Records of one pool; nodes that are not on the ledger get at most half of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """One page of a pool's records, ordered by address."""

    records: tuple[StoredRecord, ...]
    last: Address | None
    """Cursor of the next page; None on the last page."""


class RecordStore:
    """Stores node records that expire unless refreshed.

    Args:
        redis: Shared by all instances.
        limits: On number and life of records.
        clock: Source of time.
    """

    def __init__(self, redis: Redis, *, limits: RecordLimits, clock: Clock) -> None:
        self._redis = redis
        self._limits = limits
        self._clock = clock
        self._register = redis.register_script(script("register"))
        self._remove = redis.register_script(script("remove"))
        self._page = redis.register_script(script("page"))
        self._prune = redis.register_script(PRUNE)

    async def register(self, node: Address, registration: Registration, *, ip: str, on_ledger: bool) -> StoredRecord:
        """Stores or refreshes a node's registration.

        Args:
            node: Signer of the request.
            registration: Body of the request.
            ip: Source address of the request.
            on_ledger: Whether the node is on the ledger; others are refused once the pool is half full.

        Raises:
            RateLimited: Too many nodes registered from this IP, or the pool is full.
            StoreUnavailable: Redis is down.
        """
        now, life = self._now(), round(self._limits.life.total_seconds() * 1000)
        pool = str(registration.pool_id)
        room = self._limits.per_pool if on_ledger else self._limits.per_pool // 2
        body = registration.model_dump_json()
        keys = (_node_key(node), KEYS.of("pool", pool), _EXPIRY, KEYS.of("origin", origin_of(ip)))
        arguments = (KEYS.prefix, node, pool, body, ip, now, life, self._limits.per_origin, room)
        with store_errors():
            answer = await self._register(keys=keys, args=arguments)
        match answer:
            case [0, int(first)]:
                return StoredRecord(
                    address=node,
                    registration=registration,
                    ip=ip,
                    first_seen_ms=first,
                    last_seen_ms=now,
                    expires_at_ms=now + life,
                )
            case [1, int(seconds)]:
                raise _too_many_from(ip, self._limits.per_origin, timedelta(seconds=max(1, seconds)))
            case [2, _]:
                raise _pool_full(registration.pool_id, on_ledger=on_ledger)
            case _:
                raise Unavailable("the store's answer can't be read")

    async def record(self, node: Address) -> StoredRecord:
        """Returns a node's record.

        Raises:
            NotFound: There is none, or it has expired.
        """
        with store_errors():
            fields: list[Any] = await self._redis.hmget(
                _node_key(node), ["registration", "ip", "first", "last", "expires"]
            )
        found = [value for value in fields if value is not None]
        if len(found) == len(fields):
            record = _parsed([node.encode(), *found])
            if record.expires_at_ms > self._now():
                return record
        raise not_registered(node)

    async def remove(self, node: Address) -> None:
        """Deletes a node's record and invites; a missing one is ignored."""
        with store_errors():
            await self._remove(keys=(_node_key(node), _EXPIRY), args=(KEYS.prefix, node))

    async def page(self, pool_id: int, *, after: Address | None, most: int) -> StoredPage:
        """Returns up to `most` records of a pool after an address, in O(log n + most)."""
        arguments = (KEYS.prefix, after or "", most, self._now())
        with store_errors():
            answer: list[Any] = await self._page(keys=(KEYS.of("pool", str(pool_id)),), args=arguments)
        last = answer[0].decode()
        return StoredPage(records=tuple(_parsed(fields) for fields in answer[1:]), last=address(last) if last else None)

    async def prune(self, most: int = 1000) -> int:
        """Deletes at most `most` expired records; returns their number."""
        with store_errors():
            gone: int = await self._prune(keys=(_EXPIRY,), args=(KEYS.prefix, self._now(), most))
        return gone

    async def count(self) -> int:
        """Returns the number of records."""
        with store_errors():
            count: int = await self._redis.zcard(_EXPIRY)
        return count

    def _now(self) -> int:
        return unix_ms(self._clock.now())


_EXPIRY = KEYS.of("expiry")


def _node_key(node: Address) -> str:
    return KEYS.of("node", node)


def _parsed(fields: Sequence[bytes]) -> StoredRecord:
    node, registration, ip, first, last, expires = fields
    return StoredRecord(
        address=address(node.decode()),
        registration=Registration.model_validate_json(registration),
        ip=ip.decode(),
        first_seen_ms=int(first),
        last_seen_ms=int(last),
        expires_at_ms=int(expires),
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
