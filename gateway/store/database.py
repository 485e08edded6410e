"""Redis of one gateway: names of keys, scripts with their constants, and plain commands."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from gateway.settings import GatewaySettings
from gateway.store.scripts import EVERY
from protocol.identity.signing import unix_ms
from protocol.redis.connection import RedisKeys, store_errors
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock
from protocol.wire.served import MOST_LIST_BYTES, RequestKind

SCHEMA = 1
"""Version of the data in Redis (docs/compatibility.md)."""
KEPT_MS = 120_000
"""Time for which rows of ended requests are kept."""
_ROW = (
    "kind",
    "body",
    "seed",
    "choices",
    "with_pieces",
    "digest",
    "session",
    "attempt",
    "arithmetic",
    "cap",
    "verify",
    "reply",
)
PARTS_AT_ONCE = 256
"""Maximum number of parts of an answer that are read at once."""


def gateway_keys(pool_id: int) -> RedisKeys:
    """Returns the names of a pool's gateway keys."""
    return RedisKeys(f"gateway-{pool_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A client's request, as stored."""

    kind: RequestKind
    body: bytes
    seed: str
    choices: int
    with_pieces: bool
    digest: str
    session: str
    attempt: int
    arithmetic: str
    cap: int
    verify: str
    form: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of an answer: a part of an attempt, or the end."""

    id: str
    attempt: int = 0
    arithmetic: str = ""
    part: bytes = b""
    end: bytes = b""


class Database:
    """Runs scripts and commands; Redis errors are raised as `StoreUnavailable`.

    Args:
        redis: Client of the Redis that all replicas share.
        settings: Settings of the gateway.
        clock: Clock of all times in Redis.
    """

    def __init__(self, redis: Redis, *, settings: GatewaySettings, clock: Clock) -> None:
        self.redis: Any = redis  # redis-py does not annotate these commands
        self.keys = gateway_keys(settings.pool_id)
        self.scripts = ScriptRunner(redis, keys=self.keys)
        self._clock = clock
        for kind in EVERY:
            self.scripts.set_constants(
                kind,
                most_attempts=settings.attempts,
                answer_ms=round(settings.answer_timeout_s * 1000),
                kept_ms=KEPT_MS,
                list_bytes=MOST_LIST_BYTES - 65_536,
            )

    def now_ms(self) -> int:
        """Returns the time in Unix milliseconds."""
        return unix_ms(self._clock.now())

    async def request(self, identifier: str) -> RequestRow | None:
        """Returns a client's request; None if it is forgotten."""
        with store_errors():
            found: Sequence[bytes | None] = await self.redis.hmget(self.keys.of("request", identifier), _ROW)
        if found[0] is None:
            return None
        row = dict(zip(_ROW, (value or b"" for value in found), strict=True))
        return RequestRow(
            kind=RequestKind(row["kind"].decode()),
            body=row["body"],
            seed=row["seed"].decode(),
            choices=int(row["choices"]),
            with_pieces=row["with_pieces"] == b"1",
            digest=row["digest"].decode(),
            session=row["session"].decode(),
            attempt=int(row["attempt"]),
            arithmetic=row["arithmetic"].decode(),
            cap=int(row["cap"] or b"0"),
            verify=row["verify"].decode(),
            form=row["reply"],
        )

    async def has_session(self, session: str, token_hash: str) -> bool:
        """Returns whether a session exists and has a token with this hash."""
        with store_errors():
            found: bytes | None = await self.redis.hget(self.keys.of("session", session), "token")
        return found is not None and hmac.compare_digest(found, token_hash.encode())

    async def entries(self, identifier: str, *, after: str) -> list[Entry]:
        """Returns the next entries of an answer after the one with the id `after`."""
        with store_errors():
            found = await self.redis.xrange(
                self.keys.of("parts", identifier), min=f"({after}" if after else "-", count=PARTS_AT_ONCE
            )
        return [
            Entry(
                id=entry.decode(),
                attempt=int(fields.get(b"attempt", 0)),
                arithmetic=fields.get(b"arithmetic", b"").decode(),
                part=fields.get(b"part", b""),
                end=fields.get(b"end", b""),
            )
            for entry, fields in found
        ]

    async def versions(self) -> dict[str, int]:
        """Returns the versions for which sessions were opened, by digest."""
        with store_errors():
            found: dict[bytes, bytes] = await self.redis.hgetall(self.keys.of("versions"))
        return {digest.decode(): int(version) for digest, version in found.items()}

    async def beat(self, replica: str, *, lasting: timedelta) -> None:
        """Records that a replica is alive for the time `lasting`, by Redis' clock."""
        with store_errors():
            async with self.redis.pipeline(transaction=True) as pipe:
                pipe.set(self.keys.of("replica", replica), 1, px=lasting)
                pipe.sadd(self.keys.of("replicas"), replica)
                await pipe.execute()

    async def tokens_per_second(self) -> float:
        """Returns the rate of new tokens in the last minute."""
        newest = self.now_ms() // 10_000
        with store_errors():
            found = await self.redis.mget([self.keys.of("written", str(newest - back)) for back in range(1, 7)])
        return sum(int(one or 0) for one in found) / 60

    async def counts(self) -> dict[str, int]:
        """Returns the numbers of sessions, of waiting requests and of those in progress."""
        versions = list(await self.versions())
        with store_errors():
            async with self.redis.pipeline(transaction=False) as pipe:
                pipe.zcard(self.keys.of("sessions"))
                pipe.zcard(self.keys.of("progress"))
                for digest in versions:
                    pipe.zcard(self.keys.of("waiting", digest))
                    pipe.zcard(self.keys.of("verify", digest))
                sessions, progress, *queues = await pipe.execute()
        return {
            "sessions": sessions,
            "in_progress": progress,
            "waiting": sum(queues[::2]),
            "verifications": sum(queues[1::2]),
        }
