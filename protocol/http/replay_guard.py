"""Replay guard: checks nonce and rate of signed requests in one Redis script, so that no request is served twice.

A route under heavy load does this and its own work in one round trip: its script calls `admit_request` of
`protocol/redis/scripts/prelude.lua`, with `ReplayGuard.limits` as constants, and `ReplayGuard.check` reads the outcome.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta

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
"""Allowed clock difference of a request, in either direction."""

NONCE_KEPT = 2 * CLOCK_WINDOW + timedelta(seconds=60)
"""A request stamped 60 s ahead is valid for 120 s; the third minute allows for clock differences between instances."""

MOST_FAVOURED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Numbers that the replay guard's script needs; see `Admit`."""

    nonce_kept_ms: int
    interval_us: int
    tolerance_us: int

    @classmethod
    def of(cls, rate: Rate) -> RequestLimits:
        """Returns the limits for this rate."""
        return cls(
            nonce_kept_ms=math.ceil(NONCE_KEPT.total_seconds() * 1000),
            interval_us=max(1, round(rate.interval_s * 1e6)),
            tolerance_us=round(rate.tolerance_s * 1e6),
        )


class ReplayGuard:
    """Decides once per signed request whether it may be served now.

    A Redis that restarts without its data accepts the requests of the last two minutes again, so Redis must run with
    `appendonly yes` and without eviction.

    Args:
        redis: Redis that all instances of the service share.
        keys: Key names of the service.
        rate: Rate limit of one address.
        clock: Source of time.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, rate: Rate, clock: Clock) -> None:
        self._clock = clock
        self._scripts = ScriptRunner(redis, keys=keys)
        self.limits = RequestLimits.of(rate)
        self._favoured: OrderedDict[Address, tuple[float, RequestLimits]] = OrderedDict()

    def favour(self, address: Address, *, rate: Rate, lasting: timedelta) -> None:
        """Sets another rate for a role holder for the time `lasting`, in this process only."""
        self._favoured[address] = (self._clock.monotonic() + lasting.total_seconds(), RequestLimits.of(rate))
        self._favoured.move_to_end(address)
        if len(self._favoured) > MOST_FAVOURED:
            self._favoured.popitem(last=False)

    def now_us(self) -> int:
        """Returns the time of a request for the script, in Unix microseconds."""
        return int(self._clock.now().timestamp() * 1e6)

    def check(self, outcome: str, wait_us: int) -> None:
        """Returns if the script admitted the request.

        Raises:
            Conflict: The nonce was used (`replayed`).
            RateLimited: The address called too often.
            Unavailable: The script returned an unknown outcome.
        """
        match outcome:
            case "admitted":
                return
            case "replayed":
                raise Conflict(
                    "this request was made before", hint="sign each request anew, with a new nonce", code="replayed"
                )
            case "too-many":
                raise RateLimited("too many requests of this address", retry_after=timedelta(microseconds=wait_us))
            case _:
                raise Unavailable("the store's answer can't be read")

    async def admit(self, address: Address, nonce: str) -> None:
        """Admits one request.

        Raises:
            Conflict: The nonce was used.
            RateLimited: The address called too often.
            StoreUnavailable: Redis does not answer, so no request is accepted.
        """
        until, limits = self._favoured.get(address, (float("-inf"), self.limits))
        if until <= self._clock.monotonic():
            limits = self.limits
        admission = await self._scripts.run(
            Admit(
                address=address,
                nonce=nonce,
                attempt=token_hex(8),  # recognises a repetition by redis-py; random, so not guessable
                now_us=self.now_us(),
                nonce_kept_ms=limits.nonce_kept_ms,
                interval_us=limits.interval_us,
                tolerance_us=limits.tolerance_us,
            )
        )
        self.check(admission.outcome, admission.wait_us)
