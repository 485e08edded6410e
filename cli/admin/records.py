"""Redis part of a backup: places of services' keys, and the format of the files that have them."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from cli.admin.archive import BadBackup
from protocol.redis.connection import RedisKeys, connect_redis, store_errors
from protocol.redis.snapshot import OF_PROCESSES, TIMEOUT, Record, snapshot

LONGEST_RECORDS = (512 << 20) + (16 << 20)
"""Maximum bytes of records in one file of a backup: Redis' largest value, and the file's usual size."""

_USUAL_RECORDS = 8 << 20
_HEAD = struct.Struct(">IQI")
_LONGEST_KEY = 64 << 10


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """A service's data in Redis: URL, names of the keys, and the schema version of this release."""

    url: str
    """May contain a password."""
    keys: RedisKeys
    schema: int


def encoded(records: Sequence[Record]) -> bytes:
    """Returns records in the format of a backup: lengths and expiry, key, value."""
    return b"".join(
        part
        for each in records
        for part in (_HEAD.pack(len(each.key), each.expires_ms, len(each.value)), each.key, each.value)
    )


def decoded(data: bytes) -> Iterator[Record]:
    """Yields the records of a backup's file.

    Raises:
        BadBackup: The bytes are not records.
    """
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise BadBackup("the Redis part of the backup ends within a record")
        key_bytes, expires_ms, value_bytes = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        end = at + key_bytes + value_bytes
        if not 0 < key_bytes <= _LONGEST_KEY or end > len(data) or expires_ms >= 1 << 62:
            raise BadBackup("the Redis part of the backup has a record with wrong lengths")
        key = data[at : at + key_bytes]
        if key.startswith(OF_PROCESSES):
            raise BadBackup("the Redis part of the backup has a key that no backup has")
        yield Record(key, expires_ms, data[at + key_bytes : end])
        at = end


async def copied(place: RedisPlace) -> AsyncIterator[bytes]:
    """Yields the files of a backup with all keys of a service, as they were at one moment.

    Raises:
        StoreUnavailable: Redis does not answer.
        Unavailable: The keys change too fast, or were deleted all together.
    """
    waiting: list[Record] = []
    size = 0
    async for records in snapshot(place.url, place.keys):
        for record in records:
            waiting.append(record)
            size += len(record.value)
            if size >= _USUAL_RECORDS:
                yield encoded(waiting)
                waiting, size = [], 0
    if waiting:
        yield encoded(waiting)


class RedisFacts(NamedTuple):
    """Version and settings of a Redis; a setting is None if Redis does not tell it."""

    version: str
    append_only: str | None
    eviction: str | None
    used_bytes: int
    schema: int | None
    """Schema version of the service's data; None before its first start."""


async def redis_facts(place: RedisPlace) -> RedisFacts:
    """Reads the facts of a service's Redis.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    redis: Any = connect_redis(place.url, timeout=TIMEOUT)
    async with redis:
        with store_errors():
            server = await redis.info("server")
            memory = await redis.info("memory")
            schema = await redis.get(place.keys.of("schema-version"))
            configured: dict[Any, Any] = {}
            with suppress(ResponseError):  # services that host Redis forbid CONFIG
                configured = {**await redis.config_get("appendonly"), **await redis.config_get("maxmemory-policy")}
    return RedisFacts(
        version=str(server["redis_version"]),
        append_only=configured.get("appendonly"),
        eviction=configured.get("maxmemory-policy"),
        used_bytes=int(memory["used_memory"]),
        schema=None if schema is None else int(schema),
    )
