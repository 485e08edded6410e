"""Connection to Redis, names of Redis keys, and the error for an unavailable Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import FullJitterBackoff
from redis.exceptions import RedisError

from protocol.errors import InvalidInput, Unavailable


class StoreUnavailable(Unavailable):
    """Redis is down, slow or refused a command.

    Redis may have executed the command, because the error is also raised when an answer is lost.
    """

    code = "store-unavailable"


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """Names of Redis keys: `muster:{pool}:…`.

    The braces are a Redis hash tag: a cluster keeps all keys of a pool in one slot, so one script may use several keys.
    """

    pool: str

    def of(self, *parts: str) -> str:
        """Returns the key made of these parts, joined by colons.

        Raises:
            InvalidInput: A part is empty or contains a colon or a brace, so the result could be the name of another
                key.
        """
        for part in (self.pool, *parts):
            if not part or any(character in part for character in ":{}"):
                raise InvalidInput(
                    f"{part[:60]!r} can't be a part of a Redis key: it is empty or contains ':', '{{' or '}}'"
                )
        return self.prefix + ":".join(parts)

    @property
    def prefix(self) -> str:
        """Prefix of all keys of the pool."""
        return f"muster:{{{self.pool}}}:"


def connect_redis(
    url: str,
    *,
    timeout: timedelta = timedelta(seconds=2),
    retries: int = 2,
    connections: int = 64,
) -> Redis:
    """Returns a Redis client with timeouts and bounded retries; it connects on first use.

    The client repeats a command whose answer was lost, so Redis may run it twice. Scripts must tolerate that.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        timeout: Time limit for opening a connection, and for each command.
        retries: Number of retries after connection errors and timeouts.
        connections: Size of the connection pool; a command waits up to `timeout` for a free connection.

    Raises:
        InvalidInput: The URL is not a Redis URL. The message omits the URL, because it may contain a password.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            timeout=timeout.total_seconds(),
            socket_connect_timeout=timeout.total_seconds(),
            socket_timeout=timeout.total_seconds(),
            retry=Retry(FullJitterBackoff(cap=0.5, base=0.02), retries),
            max_connections=connections,
            health_check_interval=30,
            protocol=2,
        )
    except ValueError as error:
        raise InvalidInput(
            "the Redis URL is malformed", hint="write it like redis://127.0.0.1:6379/0 or unix:///run/redis.sock"
        ) from error
    return Redis.from_pool(pool)


def place_of(redis: Redis) -> str:
    """Returns the address of a client's Redis for logs, without its password.

    This is the path of the socket, or host and port.
    """
    where = redis.connection_pool.connection_kwargs
    return str(where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}")


STORE_ERRORS = (RedisError, OSError, TimeoutError)
"""Exceptions that the Redis client raises when Redis is down, slow or refuses a command."""


def store_unavailable(error: Exception) -> StoreUnavailable:
    """Converts a Redis exception into `StoreUnavailable`."""
    return StoreUnavailable(
        f"the Redis command failed: {type(error).__name__}",
        hint="try again in a moment; the command may have been executed already",
    )


@contextmanager
def store_errors() -> Iterator[None]:
    """Converts Redis exceptions raised inside the block into `StoreUnavailable`."""
    try:
        yield
    except STORE_ERRORS as error:
        raise store_unavailable(error) from error


_PROBE = RedisKeys("readiness").of("write")
_PROBE_KEPT = timedelta(minutes=1)


async def check_redis(redis: Redis) -> None:
    """Checks that Redis accepts a write; a readiness check.

    A Redis that answers reads may still refuse writes, for example when its memory or disk is full or it became a
    replica.

    Raises:
        StoreUnavailable: The write failed.
    """
    with store_errors():
        await redis.set(_PROBE, 1, px=_PROBE_KEPT)
