"""Replay guard: checks nonce and rate of signed requests, so that none is served twice.

The check is one Redis script. A route under heavy load saves a round trip: its own script calls `admit_request` of
`protocol/redis/scripts/prelude.lua`, with `ReplayGuard.limits` as constants. The route then passes the outcome to
`ReplayGuard.check`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from cachetools import LRUCache
from redis.asyncio import Redis

from protocol.errors import Conflict, RateLimited, Unavailable
from protocol.http.rates import Rate
from protocol.identifiers import Address
from protocol.redis.connection import RedisKeys
from protocol.redis.script_call import ScriptRunner
from protocol.redis.scripts import Admit
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import token_hex

CLOCK_WINDOW = timedelta(seconds=60)
"""Maximum difference between a request's timestamp and the service's clock, in either direction."""

NONCE_KEPT = 2 * CLOCK_WINDOW + timedelta(seconds=60)
"""Time for which nonces are stored. A request stamped 60 s ahead is valid for 120 s; the third minute allows for clock
differences between instances of the service.
"""

MOST_OWN_LIMITS = 256
"""Maximum number of addresses with a rate limit of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits that the replay guard's script needs; see `Admit` for the fields."""

    nonce_kept_ms: int
    interval_us: int
    tolerance_us: int

    @classmethod
    def of(cls, rate: Rate) -> AdmissionLimits:
        """Returns the limits for this rate."""
        return cls(
            nonce_kept_ms=math.ceil(NONCE_KEPT.total_seconds() * 1000),
            interval_us=max(1, round(rate.interval_s * 1e6)),
            tolerance_us=round(rate.tolerance_s * 1e6),
        )


class ReplayGuard:
    """Decides whether a signed request may be served now; call it once per request.

    If Redis loses its data, requests of the last two minutes can be replayed. Redis must therefore run with
    `appendonly yes` and without eviction.

    Args:
        redis: Redis that all instances of the service share.
        keys: Key names of the service.
        rate: Default rate limit of one address.
        clock: Clock that requests are checked against.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, rate: Rate, clock: Clock) -> None:
        self._clock = clock
        self._scripts = ScriptRunner(redis, keys=keys)
        self.limits = AdmissionLimits.of(rate)
        self._own_limits: LRUCache[Address, tuple[float, AdmissionLimits]] = LRUCache(MOST_OWN_LIMITS)

    def set_rate_limit(self, address: Address, *, rate: Rate, lasting: timedelta) -> None:
        """Sets another rate limit for an address for the time `lasting`.

        This serves role holders such as the pool's manager. It applies in this process only.
        """
        self._own_limits[address] = (self._clock.monotonic() + lasting.total_seconds(), AdmissionLimits.of(rate))

    def now_us(self) -> int:
        """Returns the current Unix time in microseconds, for the script."""
        return int(self._clock.now().timestamp() * 1e6)

    def check(self, outcome: str, wait_us: int) -> None:
        """Raises the error for the script's outcome; returns if the request is admitted.

        Raises:
            Conflict: The nonce was used before (code `replayed`).
            RateLimited: The address exceeds its rate.
            Unavailable: The script returned an unknown outcome.
        """
        match outcome:
            case "admitted":
                return
            case "replayed":
                raise Conflict(
                    "this request was served before", hint="sign each request with a new nonce", code="replayed"
                )
            case "too-many":
                raise RateLimited("this address sends too many requests", retry_after=timedelta(microseconds=wait_us))
            case _:
                raise Unavailable(
                    f"the replay guard's script returned the unknown outcome {outcome[:40]!r}",
                    hint="restart all instances of the service with the same release",
                )

    async def admit(self, address: Address, nonce: str) -> None:
        """Checks and records one request in Redis.

        Raises:
            Conflict: The nonce was used before.
            RateLimited: The address exceeds its rate.
            StoreUnavailable: Redis does not answer. Requests are then refused, because replays can't be detected.
        """
        until, limits = self._own_limits.get(address, (float("-inf"), self.limits))
        if until <= self._clock.monotonic():
            limits = self.limits
        admission = await self._scripts.run(
            Admit(
                address=address,
                nonce=nonce,
                attempt=token_hex(8),  # lets the script recognise a repeated call by redis-py; random, so not guessable
                now_us=self.now_us(),
                nonce_kept_ms=limits.nonce_kept_ms,
                interval_us=limits.interval_us,
                tolerance_us=limits.tolerance_us,
            )
        )
        self.check(admission.outcome, admission.wait_us)
