"""Records of nodes in Redis: a hash per node, and sorted sets by pool, expiry and origin."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from discovery.store.records import StoredRecord, origin_of
from discovery.store.scripts import (
    HeldStatements,
    ListPage,
    ListStatements,
    PruneExpired,
    RegisterNode,
    RemoveNode,
)
from protocol.errors import Conflict, NotFound, RateLimited, Unavailable
from protocol.identifiers import Address, address
from protocol.identity.signing import unix_ms
from protocol.redis.connection import RedisKeys, store_errors
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock
from protocol.wire.base import parse_answer
from protocol.wire.federation import NodeStatement, NodeStatementPage
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
    keys, so other nodes could otherwise fill the pool. From other services, nodes that are not on the ledger are taken
    only until the pool has a quarter, so that a peer can't use up the room of nodes that register here.
    """
    federated_records: int
    """Maximum number of records and marks of removals that one peer passed on, of all pools together.

    Nodes that are not on the ledger are taken until half of it: a peer can invent any number of them.
    """
    federated_bytes: int
    """Maximum bytes of these records and marks, with the same halves."""

    def room(self, *, on_ledger: bool, direct: bool) -> int:
        """Returns the number of records of a pool from which a new node is refused."""
        return self.per_pool if on_ledger else self.per_pool // (2 if direct else 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Number of registrations of a peer that were stored, and that were refused by a limit of federation."""

    stored: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedSum:
    """Records and marks of removals that one peer passed on and that are stored now."""

    records: int
    bytes: int


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

    async def register(
        self, statement: NodeStatement, registration: Registration, *, ip: str, on_ledger: bool, shareable: bool
    ) -> StoredRecord:
        """Stores or refreshes the registration of a node that sent it to this service.

        If a newer registration of the node is stored, it is kept and returned.

        Args:
            statement: The node's signed request.
            registration: Body of the request.
            ip: Source address of the request.
            on_ledger: Whether the node is registered on the ledger. Other nodes are refused once the pool has half of
                its maximum number of records.
            shareable: Whether other services can check the signature.

        Raises:
            RateLimited: Too many nodes registered from this IP, or the pool has too many records (see `RecordLimits`).
            Conflict: The node signed this request before it removed itself.
            StoreUnavailable: Redis is down.
        """
        call = self._register_call(statement, registration, ip=ip, on_ledger=on_ledger, source=None)
        registered = await self._scripts.run(call if shareable else replace(call, signature=""))
        match registered.refused:
            case "":
                return StoredRecord(
                    address=statement.node,
                    registration=registration,
                    ip=ip,
                    first_seen_ms=registered.first_seen_ms,
                    last_seen_ms=call.now_ms,
                    expires_at_ms=call.now_ms + call.life_ms,
                    signed_for=statement.audience,
                )
            case "older":
                return await self.record(statement.node)
            case "left":
                raise Conflict(
                    f"{statement.node} signed this registration before the removal that is stored here",
                    hint="register again; if this repeats, check the machine's clock",
                    code="older-registration",
                    retryable=True,
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
        if all(value is not None for value in values[: len(_REQUIRED)]):
            found = {name: (value or b"").decode() for name, value in zip(_FIELDS, values, strict=True)}
            record = _parsed(node, found)
            if record.expires_at_ms > self._now():
                return record
        raise not_registered(node)

    async def remove(self, statement: NodeStatement, *, on_ledger: bool, shareable: bool) -> None:
        """Deletes the record and invites of a node that asked this service, and remembers the removal.

        It does nothing if a newer registration is stored.

        Args:
            statement: The node's signed request.
            on_ledger: Whether the node is registered on the ledger.
            shareable: Whether other services can check the signature.
        """
        call = self._remove_call(statement, on_ledger=on_ledger, source=None)
        await self._scripts.run(call if shareable else replace(call, signature=""))

    async def merge(
        self,
        registrations: Sequence[tuple[NodeStatement, Registration]],
        removals: Sequence[NodeStatement],
        *,
        on_ledger: Collection[Address],
        source: str,
    ) -> Merged:
        """Stores statements from another service, unless a newer one of the same node is stored.

        The result does not depend on the order in which statements arrive, unless a limit is reached.

        Args:
            registrations: Checked registrations with their parsed bodies.
            removals: Checked removals.
            on_ledger: Nodes that are registered on the ledger.
            source: URL of the service, to whose limit the statements count.
        """
        stored = await self._scripts.run_many(
            [
                self._register_call(each, body, ip="", on_ledger=each.node in on_ledger, source=source)
                for each, body in registrations
            ]
        )
        await self._scripts.run_many(
            [self._remove_call(each, on_ledger=each.node in on_ledger, source=source) for each in removals]
        )
        return Merged(
            stored=sum(not each.refused for each in stored),
            refused=sum(each.refused == "federated" for each in stored),
        )

    async def federated(self) -> dict[str, FederatedSum]:
        """Returns what each peer passed on, by its URL."""
        with store_errors():
            found: Any = await self._redis.hgetall(KEYS.of("federated-sums"))
        sums = {name.decode(): int(value) for name, value in found.items()}
        peers = {name.partition(":")[2] for name in sums}
        return {peer: FederatedSum(records=sums.get(f"n:{peer}", 0), bytes=sums.get(f"b:{peer}", 0)) for peer in peers}

    async def held(self, nodes: Sequence[Address]) -> list[tuple[int, str]]:
        """Returns time and signature of the newest statement of each node; (0, "") if there is none."""
        found = await self._scripts.run(HeldStatements(now_ms=self._now(), nodes=tuple(nodes)))
        parts = [text.partition(" ") for text in found]
        return [(int(ms or 0), signature) for ms, _, signature in parts]

    async def statements(self, *, after: Address | None, most: int) -> NodeStatementPage:
        """Returns a page of up to `most` statements that other services can check, ordered by address."""
        page = await self._scripts.run(ListStatements(after=after or "", limit=most, now_ms=self._now()))
        statements = tuple(NodeStatement.model_validate({"body": None} | fields) for fields in page.records)
        return NodeStatementPage(statements=statements, next_cursor=page.last or None)

    async def audience(self, node: Address) -> Address | None:
        """Returns the service to which the node sent its registration; None if there is no record."""
        with store_errors():
            value: Any = await self._redis.hget(KEYS.of("node", node), "audience")
        return None if value is None else Address(value.decode())

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

    def _register_call(
        self, statement: NodeStatement, registration: Registration, *, ip: str, on_ledger: bool, source: str | None
    ) -> RegisterNode:
        direct = source is None
        return RegisterNode(
            address=statement.node,
            pool=str(registration.pool_id),
            registration=statement.body or "",  # exactly as it was signed
            ip=ip,
            origin=origin_of(ip),
            now_ms=self._now(),
            life_ms=self._life_ms,
            most_per_origin=self._limits.per_origin,
            most_per_pool=self._limits.room(on_ledger=on_ledger, direct=direct),
            direct=direct,
            source=source or "",
            most_federated=self._limits.federated_records // (1 if on_ledger else 2),
            most_federated_bytes=self._limits.federated_bytes // (1 if on_ledger else 2),
            signed_ms=statement.timestamp_ms,
            audience=statement.audience,
            nonce=statement.nonce,
            signature=statement.signature,
        )

    def _remove_call(self, statement: NodeStatement, *, on_ledger: bool, source: str | None) -> RemoveNode:
        return RemoveNode(
            address=statement.node,
            now_ms=self._now(),
            life_ms=self._life_ms,
            direct=source is None,
            source=source or "",
            most_federated=self._limits.federated_records // (1 if on_ledger else 2),
            most_federated_bytes=self._limits.federated_bytes // (1 if on_ledger else 2),
            signed_ms=statement.timestamp_ms,
            audience=statement.audience,
            nonce=statement.nonce,
            signature=statement.signature,
            on_ledger=on_ledger,
            most_unknown=self._limits.per_pool // 4,
        )

    @property
    def _life_ms(self) -> int:
        return round(self._limits.life.total_seconds() * 1000)

    def _now(self) -> int:
        return unix_ms(self._clock.now())


_EXPIRY = KEYS.of("expiry")


_REQUIRED = ("registration", "ip", "first", "last", "expires")
_FIELDS = (*_REQUIRED, "audience")


def _parsed(node: Address, fields: Mapping[str, str]) -> StoredRecord:
    return StoredRecord(
        address=node,
        registration=parse_answer(Registration, fields["registration"].encode()),
        ip=fields["ip"],
        first_seen_ms=int(fields["first"]),
        last_seen_ms=int(fields["last"]),
        expires_at_ms=int(fields["expires"]),
        signed_for=address(fields["audience"]) if fields["audience"] else None,
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
