"""Consistent snapshot of a service's keys in Redis while the service works, for backups.

Redis has no command that reads many keys of one moment without stopping all other clients. So the snapshot is made in
rounds. Redis reports every key that changes from the beginning on (`CLIENT TRACKING … BCAST`). The first round copies
all keys with `SCAN` and `DUMP`; each further round copies those that changed meanwhile. When few are left, Redis holds
back all writes for a moment (`CLIENT PAUSE … WRITE`), and they are copied in one transaction. The copy is complete if
no other key changed before that transaction: then it has every key as it was at the moment of the transaction. This is
checked, because a pause ends by itself. A later record of a key replaces an earlier one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from protocol.errors import MusterError, Unavailable
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
TIMEOUT = timedelta(seconds=30)
"""Time limit of a round trip; copying a value of 500 MB takes seconds."""
NO_EXPIRY = 0
OF_PROCESSES = (b"lease:", b"schema-lock", RESTORING.encode())
"""Beginnings of keys that belong to running processes. They are not copied: a copy must not claim that they run."""

_CHANNEL = "__redis__:invalidate"
_PING = b"read"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A key without the service's prefix, and its value as `DUMP` returns it."""

    key: bytes
    expires_ms: int
    """Unix time at which it expires; 0 if it does not."""
    value: bytes
    """Empty if the key was deleted."""


async def snapshot(url: str, keys: RedisKeys) -> AsyncIterator[list[Record]]:
    """Yields all keys of a service, as they were at one moment; a later record of a key replaces an earlier one.

    Raises:
        StoreUnavailable: Redis does not answer.
        Unavailable: The keys change too fast, or were deleted all together.
    """
    with store_errors():
        async with AsyncExitStack() as stack:
            reader = await _connected(url, keys, stack)
            async for records in _records(reader):
                yield records


class _KeyReader:
    """Reads keys over one connection, and learns over another one which keys change."""

    def __init__(self, commands: AbstractConnection, notices: AbstractConnection, keys: RedisKeys) -> None:
        self._commands = commands
        self._notices = notices
        self._prefix = keys.prefix.encode()
        self.pattern = pattern(keys)

    async def begin(self) -> None:
        """Subscribes to notices of changed keys."""
        (number,) = await _ask(self._notices, [("CLIENT", "ID")])
        await _ask(self._notices, [("SUBSCRIBE", _CHANNEL)])
        tracking = ("CLIENT", "TRACKING", "ON", "REDIRECT", number, "BCAST", "PREFIX", self._prefix)
        try:
            await _ask(self._commands, [tracking])
        except ResponseError as error:
            raise MusterError(
                f"Redis refuses CLIENT TRACKING, which a backup needs: {error}",
                hint="use Redis 6.2 or newer without a proxy, and allow its user the command CLIENT",
            ) from error

    async def names(self) -> AsyncIterator[list[bytes]]:
        """Yields the keys without the prefix, in pages."""
        cursor = None
        while cursor != 0:
            (answer,) = await _ask(self._commands, [("SCAN", cursor or 0, "MATCH", self.pattern, "COUNT", 512)])
            cursor = int(answer[0])
            yield self._own(answer[1])

    async def changed(self) -> set[bytes]:
        """Returns the keys that changed since the last call.

        All changes that Redis executed before this call are among them: Redis sends notices in order, and sends those
        of a command before it reads the next one of this connection.
        """
        found: set[bytes] = set()
        await self._notices.send_command("PING", _PING)
        while True:
            kind, *rest = await self._notices.read_response()
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
            *_, answers = await _ask(self._commands, [("MULTI",), *commands, ("EXEC",)])
        else:
            answers = await _ask(self._commands, commands)
        time, *values = answers
        now = int(time[0]) * 1000 + int(time[1]) // 1000
        return [
            Record(name, now + left if left >= 0 else NO_EXPIRY, value or b"")
            for name, left, value in zip(names, values[::2], values[1::2], strict=True)
        ]

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Makes Redis hold back writes during the block, for `PAUSE` at most; not if Redis forbids it."""
        with suppress(ResponseError):
            await _ask(self._commands, [("CLIENT", "PAUSE", int(PAUSE.total_seconds() * 1000), "WRITE")])
        yield
        with suppress(ResponseError):  # not after an error in the block: the pause ends by itself
            await _ask(self._commands, [("CLIENT", "UNPAUSE")])

    def _own(self, names: Sequence[bytes]) -> list[bytes]:
        short = (name.removeprefix(self._prefix) for name in names)
        return [name for name in short if name and not name.startswith(OF_PROCESSES)]


async def _records(reader: _KeyReader) -> AsyncIterator[list[Record]]:
    changed: set[bytes] = set()
    async for page in reader.names():
        for some in batches(page, RECORDS_AT_ONCE):
            yield await reader.read(some)
            changed |= await reader.changed()
    for _ in range(MOST_ROUNDS):
        if len(changed) <= MOST_IN_TRANSACTION:
            async with reader.paused():
                names = sorted(changed | await reader.changed())
                found = await reader.read(names, at_once=True)
                changed = await reader.changed()
            yield found
            if changed <= set(names):
                return
            continue
        names, changed = sorted(changed), set()
        for some in batches(names, RECORDS_AT_ONCE):
            yield await reader.read(some)
            changed |= await reader.changed()
    raise Unavailable(
        f"the keys {reader.pattern} in Redis change faster than they can be copied",
        hint="make the backup when the pool has less to do, or stop its services for the time of the backup",
    )


async def _connected(url: str, keys: RedisKeys, stack: AsyncExitStack) -> _KeyReader:
    redis = connect_redis(url, timeout=TIMEOUT, retries=0)
    stack.push_async_callback(redis.aclose)
    pool: Any = redis.connection_pool
    # Connections of their own, because a client would reconnect, and changes would be missed.
    commands, notices = pool.make_connection(), pool.make_connection()
    for connection in (commands, notices):
        connection.health_check_interval = 0
        stack.push_async_callback(connection.disconnect)
        await connection.connect()
    reader = _KeyReader(commands, notices, keys)
    await reader.begin()
    return reader


async def _ask(connection: AbstractConnection, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Sends commands together and returns their answers.

    Raises:
        RedisError: Redis refused a command, and answers of later commands are unread; or the connection broke.
    """
    if not connection.is_connected:
        raise RedisError("the connection to Redis broke")
    await connection.send_packed_command(connection.pack_commands(commands))
    answers = [await connection.read_response() for _ in commands]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yields items in batches of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))


def pattern(keys: RedisKeys) -> str:
    """Returns the pattern of all keys of a service; `{` and `}` have no meaning in Redis' patterns."""
    return f"{keys.prefix}*"
