"""Consistent copy of a service's keys in Redis while the service works, and the way back.

Redis has no command that reads many keys of one moment without stopping all other clients. So the copy is made in
rounds. Redis reports every key that changes from the beginning on (`CLIENT TRACKING … BCAST`). The first round copies
all keys with `SCAN` and `DUMP`; each further round copies those that changed meanwhile. When few are left, Redis holds
back all writes for a moment (`CLIENT PAUSE … WRITE`), and they are copied in one transaction. The copy is complete if
no other key changed before that transaction: then it has every key as it was at the moment of the transaction. This is
checked, because a pause ends by itself. A later record of a key replaces an earlier one.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from cli.admin.archive import BadBackup
from protocol.errors import Conflict, MusterError, Unavailable
from protocol.redis.connection import RedisKeys, connect_redis, store_errors
from protocol.redis.schema import RESTORING

RECORDS_AT_ONCE = 64
"""Keys that are copied in one round trip."""
MOST_IN_TRANSACTION = 256
"""Maximum number of keys that the last round copies while Redis serves nobody else."""
MOST_ROUNDS = 200
"""Rounds after which the copy is given up, because keys change faster than they can be copied."""
PAUSE = timedelta(milliseconds=500)
"""Longest time for which Redis holds back writes; services wait 2 s for Redis. Some milliseconds are usual."""
LONGEST_RECORDS = (512 << 20) + (16 << 20)
"""Maximum bytes of records in one file of a backup: Redis' largest value, and the file's usual size."""

_USUAL_RECORDS = 8 << 20
_TIMEOUT = timedelta(seconds=30)
"""Time limit of a round trip; copying a value of 500 MB takes seconds."""
_CHANNEL = "__redis__:invalidate"
_PING = b"read"
_HEAD = struct.Struct(">IQI")
_LONGEST_KEY = 64 << 10
_NO_EXPIRY = 0
_SANITIZE = "sanitize-dump-payload"
_UNREADABLE = ("DUMP payload", "Bad data format")
"""Words of Redis' errors about values that it can't read."""
_NOT_COPIED = (b"lease:", b"schema-lock", RESTORING.encode())
"""Beginnings of keys that belong to running processes. A copy must not claim that they run."""


class ServicesRunning(Conflict):
    """A service uses the data that is to be replaced."""

    code = "services-running"


@dataclass(frozen=True, slots=True)
class Record:
    """A key and its value.

    Args:
        key: Name of the key without the service's prefix.
        expires_ms: Unix time at which it expires; 0 if it does not.
        value: Its value as `DUMP` returns it; empty if the key was deleted.
    """

    key: bytes
    expires_ms: int
    value: bytes


def encoded(records: Sequence[Record]) -> bytes:
    """Returns records in the format of a backup: lengths and expiry, key, value."""
    heads = (_HEAD.pack(len(each.key), each.expires_ms, len(each.value)) + each.key for each in records)
    return b"".join(part for head, each in zip(heads, records, strict=True) for part in (head, each.value))


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
        if key.startswith(_NOT_COPIED):
            raise BadBackup("the Redis part of the backup has a key that no backup has")
        yield Record(key, expires_ms, data[at + key_bytes : end])
        at = end


class _Changing:
    """Two connections: one reads keys, the other one hears which keys change."""

    def __init__(self, asking: AbstractConnection, hearing: AbstractConnection, keys: RedisKeys) -> None:
        self._asking = asking
        self._hearing = hearing
        self._prefix = keys.prefix.encode()
        self.prefix = keys.prefix

    async def begin(self) -> None:
        """Subscribes to notifications of changed keys."""
        (number,) = await _ask(self._hearing, [("CLIENT", "ID")])
        await _ask(self._hearing, [("SUBSCRIBE", _CHANNEL)])
        tracking = ("CLIENT", "TRACKING", "ON", "REDIRECT", number, "BCAST", "PREFIX", self.prefix)
        try:
            await _ask(self._asking, [tracking])
        except ResponseError as error:
            raise MusterError(
                f"Redis refuses CLIENT TRACKING, which a backup needs: {error}",
                hint="use Redis 6.2 or newer without a proxy, and allow its user the command CLIENT",
            ) from error

    async def page(self, cursor: int) -> tuple[int, list[bytes]]:
        """Returns the next cursor, and some keys without the prefix."""
        (answer,) = await _ask(self._asking, [("SCAN", cursor, "MATCH", _pattern(self.prefix), "COUNT", 512)])
        return int(answer[0]), self._own(answer[1])

    async def changed(self) -> set[bytes]:
        """Returns the keys that changed since the last call.

        All changes that Redis executed before this call are among them: Redis sends reports in order, and sends those
        of a command before it reads the next one of this connection.
        """
        found: set[bytes] = set()
        await self._hearing.send_command("PING", _PING)
        while True:
            kind, *rest = await self._hearing.read_response()
            if kind == b"pong":
                return found
            if rest[1] is None:
                raise Unavailable("Redis was emptied during the backup", hint="make the backup again")
            found.update(self._own(rest[1]))

    async def read(self, names: Sequence[bytes], *, at_once: bool = False) -> list[Record]:
        """Reads keys; those that do not exist have no value.

        Args:
            names: Keys without the prefix.
            at_once: Read them in one transaction.
        """
        commands: list[tuple[Any, ...]] = [("TIME",)]
        for name in names:
            key = self._prefix + name
            commands += [("PTTL", key), ("DUMP", key)]
        if at_once:
            *_, answers = await _ask(self._asking, [("MULTI",), *commands, ("EXEC",)])
        else:
            answers = await _ask(self._asking, commands)
        time, *values = answers
        now = int(time[0]) * 1000 + int(time[1]) // 1000
        return [
            Record(name, now + left if left >= 0 else _NO_EXPIRY, value or b"")
            for name, left, value in zip(names, values[::2], values[1::2], strict=True)
        ]

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Makes Redis hold back writes during the block, for `PAUSE` at most; not if Redis forbids it."""
        allowed = True
        try:
            await _ask(self._asking, [("CLIENT", "PAUSE", int(PAUSE.total_seconds() * 1000), "WRITE")])
        except ResponseError:
            allowed = False
        yield
        if allowed:  # after an error the connection may be unusable, and the pause ends by itself
            await _ask(self._asking, [("CLIENT", "UNPAUSE")])

    def _own(self, names: Sequence[bytes]) -> list[bytes]:
        short = (name.removeprefix(self._prefix) for name in names)
        return [name for name in short if name and not name.startswith(_NOT_COPIED)]


async def copied(url: str, keys: RedisKeys) -> AsyncIterator[bytes]:
    """Yields the files of a backup with all keys of a service, as they were at one moment.

    Raises:
        StoreUnavailable: Redis does not answer.
        Unavailable: The keys change too fast, or were deleted all together.
    """
    async with AsyncExitStack() as stack:
        with store_errors():
            changing = await _connected(url, keys, stack)
        waiting: list[Record] = []
        size = 0
        records = _records(changing)
        while True:
            with store_errors():
                batch = await anext(records, None)
            for record in batch or ():
                waiting.append(record)
                size += len(record.value)
                if size >= _USUAL_RECORDS:
                    yield encoded(waiting)
                    waiting, size = [], 0
            if batch is None:
                break
        if waiting:
            yield encoded(waiting)


async def _records(changing: _Changing) -> AsyncIterator[list[Record]]:
    changed: set[bytes] = set()
    cursor = 0
    while True:
        cursor, names = await changing.page(cursor)
        for some in _some(names):
            yield await changing.read(some)
            changed |= await changing.changed()
        if cursor == 0:
            break
    changed |= await changing.changed()
    for _ in range(MOST_ROUNDS):
        if len(changed) <= MOST_IN_TRANSACTION:
            async with changing.paused():
                names = sorted(changed | await changing.changed())
                found = await changing.read(names, at_once=True)
                changed = await changing.changed()
            if changed <= set(names):
                yield found
                return
            yield [each for each in found if each.key not in changed]
            continue
        names, changed = sorted(changed), set()
        for some in _some(names):
            yield await changing.read(some)
            changed |= await changing.changed()
    raise Unavailable(
        f"the keys {changing.prefix}* in Redis change faster than they can be copied",
        hint="make the backup when the pool has less to do, or stop its services for the time of the backup",
    )


async def _connected(url: str, keys: RedisKeys, stack: AsyncExitStack) -> _Changing:
    redis = connect_redis(url, timeout=_TIMEOUT, retries=0)
    stack.push_async_callback(redis.aclose)
    pool: Any = redis.connection_pool
    # Connections of their own, because a client would reconnect, and changes would be missed.
    asking, hearing = pool.make_connection(), pool.make_connection()
    for connection in (asking, hearing):
        connection.health_check_interval = 0
        stack.push_async_callback(connection.disconnect)
        await connection.connect()
    changing = _Changing(asking, hearing, keys)
    await changing.begin()
    return changing


async def _ask(connection: AbstractConnection, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Sends commands together and returns their answers.

    Raises:
        RedisError: Redis refused a command, or the connection broke. It is unusable then.
    """
    if not connection.is_connected:
        raise RedisError("the connection to Redis broke")
    await connection.send_packed_command(connection.pack_commands(commands))
    answers = [await connection.read_response() for _ in commands]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _some(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(names), RECORDS_AT_ONCE):
        yield names[start : start + RECORDS_AT_ONCE]


def _pattern(prefix: str) -> str:
    return f"{prefix}*"  # `{` and `}` have no meaning in Redis' patterns


class RedisTarget:
    """A service's keys in Redis, into which a backup is restored.

    Args:
        redis: Client of the service's Redis.
        keys: Names of the service's keys.
        service: Name of the service, for errors.
    """

    def __init__(self, redis: Redis, keys: RedisKeys, *, service: str) -> None:
        self._redis: Any = redis
        self._keys = keys
        self._service = service

    async def check_unused(self) -> None:
        """Checks that no process of the service works with this Redis.

        Raises:
            ServicesRunning: A process holds a leader lease or listens to the service's messages.
        """
        with store_errors():
            leases = [name async for name in self._redis.scan_iter(_pattern(self._keys.of("lease") + ":"), count=1000)]
            listened = await self._redis.pubsub_channels(_pattern(self._keys.prefix))
        trainer = self._keys.of("lease", "trainer").encode()  # held over HTTP, so it ends when the orchestrator ends
        if listened or any(not name.startswith(trainer) for name in leases):
            raise ServicesRunning(
                f"the {self._service} is running: it works with {self._keys.prefix}* in this Redis",
                hint=f"stop all instances of the {self._service}; one that was killed counts as running for some "
                "seconds more",
            )

    async def check_readable(self, value: bytes) -> None:
        """Checks that this Redis can read a value of the backup, by a key that it deletes at once.

        Raises:
            BadBackup: It can't.
            StoreUnavailable: Redis does not answer, or is full.
        """
        key = self._keys.of(RESTORING, "sample").encode()
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.restore(key, 1, value, replace=True)
        pipeline.unlink(key)
        with store_errors():
            answers = await pipeline.execute(raise_on_error=False)
        _check_restored(answers[:1])

    async def is_unfinished(self) -> bool:
        """Returns whether an earlier restore was interrupted."""
        with store_errors():
            return bool(await self._redis.exists(self._keys.of(RESTORING)))

    async def is_empty(self) -> bool:
        """Returns whether the service has no data."""
        with store_errors():
            async for _ in self._redis.scan_iter(_pattern(self._keys.prefix), count=1000):
                return False
        return True

    async def mark(self) -> bool:
        """Marks the data as incomplete; returns whether they were not marked before."""
        with store_errors():
            return bool(await self._redis.set(self._keys.of(RESTORING), 1, nx=True))

    async def unmark(self) -> None:
        """Marks the data as complete."""
        with store_errors():
            await self._redis.delete(self._keys.of(RESTORING))

    async def clear(self) -> None:
        """Deletes all data but the mark."""
        marker = self._keys.of(RESTORING).encode()
        with store_errors():
            names: list[bytes] = []
            async for name in self._redis.scan_iter(_pattern(self._keys.prefix), count=1000):
                names.append(name)
                if len(names) == 1000:
                    await self._delete(names, but=marker)
                    names = []
            await self._delete(names, but=marker)

    async def write(self, records: Sequence[Record]) -> None:
        """Writes records; those that have expired meanwhile are left out.

        Raises:
            BadBackup: Redis can't read a value.
            StoreUnavailable: Redis does not answer, or is full.
        """
        with store_errors():
            seconds, microseconds = await self._redis.time()
        now = seconds * 1000 + microseconds // 1000
        prefix = self._keys.prefix.encode()
        for some in _portions(records):
            pipeline = self._redis.pipeline(transaction=False)
            for each in some:
                if each.value and (each.expires_ms == _NO_EXPIRY or each.expires_ms > now):
                    pipeline.restore(prefix + each.key, each.expires_ms, each.value, replace=True, absttl=True)
                else:
                    pipeline.unlink(prefix + each.key)
            with store_errors():
                answers = await pipeline.execute(raise_on_error=False)
            _check_restored(answers)

    async def _delete(self, names: Sequence[bytes], *, but: bytes) -> None:
        if deleted := [name for name in names if name != but]:
            await self._redis.unlink(*deleted)


def _check_restored(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, ResponseError) and any(words in str(answer) for words in _UNREADABLE):
            raise BadBackup(f"Redis can't read a value of the backup: {answer}", hint="use the same Redis version")
        if isinstance(answer, ResponseError):
            raise Unavailable(
                f"Redis refused to restore a key: {answer}", hint="give Redis more memory, then run it again"
            )
        if isinstance(answer, Exception):
            with store_errors():
                raise answer


def _portions(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yields records in portions of some megabytes and at most 512 records."""
    portion: list[Record] = []
    size = 0
    for record in records:
        portion.append(record)
        size += len(record.value)
        if size >= _USUAL_RECORDS or len(portion) == 512:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


@asynccontextmanager
async def redis_target(url: str, keys: RedisKeys, *, service: str) -> AsyncIterator[RedisTarget]:
    """Connects to the Redis into which a backup is restored, and makes it check values before it accepts them.

    By default Redis trusts the values of `RESTORE`, and a forged one can crash it. Where `CONFIG` is forbidden, its
    operator's setting stays.
    """
    redis: Any = connect_redis(url, timeout=_TIMEOUT)
    before: dict[str, str] = {}
    try:
        with store_errors(), suppress(ResponseError):
            before = await redis.config_get(_SANITIZE)
            await redis.config_set(_SANITIZE, "yes")
        yield RedisTarget(redis, keys, service=service)
    finally:
        with suppress(RedisError):
            if before:
                await redis.config_set(_SANITIZE, next(iter(before.values())))
        await redis.aclose()


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Redis' version and settings.

    Args:
        version: Version of Redis.
        append_only: Value of `appendonly`; None if Redis does not say.
        eviction: Value of `maxmemory-policy`; None if Redis does not say.
        used_bytes: Memory that Redis uses.
        schema: Schema version of the service's data; None before its first start.
    """

    version: str
    append_only: str | None
    eviction: str | None
    used_bytes: int
    schema: int | None


async def redis_facts(url: str, keys: RedisKeys) -> RedisFacts:
    """Reads the facts of a service's Redis.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    redis: Any = connect_redis(url, timeout=_TIMEOUT)
    try:
        with store_errors():
            server = await redis.info("server")
            memory = await redis.info("memory")
            schema = await redis.get(keys.of("schema-version"))
            configured: dict[Any, Any] = {}
            with suppress(ResponseError):  # services that host Redis forbid CONFIG
                configured = {**await redis.config_get("appendonly"), **await redis.config_get("maxmemory-policy")}
    finally:
        await redis.aclose()
    return RedisFacts(
        version=str(server["redis_version"]),
        append_only=configured.get("appendonly"),
        eviction=configured.get("maxmemory-policy"),
        used_bytes=int(memory["used_memory"]),
        schema=None if schema is None else int(schema),
    )
