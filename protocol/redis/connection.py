"""Connection to Redis, names of keys, and the error for an unavailable Redis."""

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
    """Redis is down, slow or refuses a command. The command may still have been executed if its answer was lost."""

    code = "store-unavailable"


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """Names of keys: `muster:{pool}:…`.

    The braces are a hash tag: a cluster keeps all keys of a pool in one slot, so a script may use any of them.
    """

    pool: str

    def of(self, *parts: str) -> str:
        """Returns the key made of these parts.

        Raises:
            InvalidInput: A part contains a colon or a brace, so the result could be another key.
        """
        for part in (self.pool, *parts):
            if not part or any(character in part for character in ":{}"):
                raise InvalidInput(f"{part[:60]!r} can't be a part of a key")
        return self.prefix + ":".join(parts)

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return f"muster:{{{self.pool}}}:"


def connect_redis(
    url: str,
    *,
    timeout: timedelta = timedelta(seconds=2),
    retries: int = 2,
    connections: int = 64,
) -> Redis:
    """Returns a client with timeouts and bounded retries; it connects on first use.

    A command that changes something may run twice if its answer was lost, so scripts must tolerate that.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        timeout: Time limit for connecting, and for each command.
        retries: Number of retries after connection errors and timeouts.
        connections: Size of the pool; a command waits up to `timeout` for a free connection.

    Raises:
        InvalidInput: The URL is not a Redis URL. The message omits it, because it may hold a password.
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
            "the Redis URL can't be read", hint="for example redis://127.0.0.1:6379/0 or unix:///run/redis.sock"
        ) from error
    return Redis.from_pool(pool)


def place_of(redis: Redis) -> str:
    """Returns the socket, or host and port, that a client connects to, for logs; never its password."""
    where = redis.connection_pool.connection_kwargs
    return str(where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}")


STORE_ERRORS = (RedisError, OSError, TimeoutError)
"""Exceptions raised when Redis is down, slow or refuses."""


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
    """Returns if Redis accepts a write; a readiness check.

    A Redis that answers reads may still refuse writes: its memory or disk is full, or it became a replica.

    Raises:
        StoreUnavailable: The write failed.
    """
    with store_errors():
        await redis.set(_PROBE, 1, px=_PROBE_KEPT)
