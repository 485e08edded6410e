"""Admission: rate per address and nonce, decided in one Redis script, so that nothing is accepted twice or without it.

A hot path does this and its own work in one round trip: its script begins with `ADMISSION_LUA`, calls
`muster_admit(...)` with the keys and arguments from `ReplayGuard.terms`, and hands the result to `ReplayGuard.check`.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from protocol.errors import Conflict, RateLimited, Unavailable
from protocol.http.rates import Rate
from protocol.identifiers import Address
from protocol.runtime.clock import Clock
from protocol.runtime.redis import RedisKeys, store_errors

if TYPE_CHECKING:
    from redis.commands.core import AsyncScript

CLOCK_WINDOW = timedelta(seconds=60)
"""Allowed clock difference of a request, in either direction."""

NONCE_KEPT = 2 * CLOCK_WINDOW + timedelta(seconds=60)
"""A request stamped 60 s ahead is good for 120 s; the third minute is for clocks of several instances that differ."""

MOST_FAVOURED = 256

ADMISSION_LUA = """
-- Answers {0, 0} admitted, {1, 0} replayed, {2, wait in microseconds} too many. Times in microseconds.
-- A replay costs its victim nothing: the nonce is looked at before the rate is charged.
-- `attempt` is optional: who asks once more with the same one, because the answer was lost, is told it again.
local function muster_admit(nonce_key, rate_key, now, kept_ms, interval, tolerance, attempt)
  now, interval, tolerance = tonumber(now), tonumber(interval), tonumber(tolerance)
  local admitted = redis.call('GET', nonce_key)
  if admitted then return {(attempt and admitted == attempt) and 0 or 1, 0} end
  local due = tonumber(redis.call('GET', rate_key) or '0')
  -- Before now: idle. Impossibly far ahead: a clock was wrong.
  if due < now or due > now + tolerance + 2 * interval then due = now end
  if due - now > tolerance then return {2, math.ceil(due - now - tolerance)} end
  due = due + interval
  redis.call('SET', rate_key, string.format('%.0f', due), 'PX', math.ceil((due - now) / 1000) + 1000)
  redis.call('SET', nonce_key, attempt or '1', 'PX', kept_ms)
  return {0, 0}
end
"""
"""The Lua function `muster_admit(nonce_key, rate_key, now, kept_ms, interval, tolerance, attempt)`; Redis 6.2 only."""

_SCRIPT = ADMISSION_LUA + "return muster_admit(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])"


@dataclass(frozen=True, slots=True)
class ReplayTerms:
    """Keys and arguments of `muster_admit`, in its order."""

    keys: tuple[str, str]
    arguments: tuple[int, int, int, int]


class ReplayGuard:
    """Decides once per signed request whether it may be served now.

    It is as good as the store's memory: a Redis that comes back empty has forgotten the nonces of the last two minutes,
    so it is run with `appendonly yes` and without eviction.

    Args:
        redis: Shared by every instance of the service.
        keys: Where the service keeps its keys.
        rate: What one address may do.
        clock: Whose time counts.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, rate: Rate, clock: Clock) -> None:
        self._clock = clock
        self._prefix = keys.prefix
        self._arguments = _arguments(rate)
        self._favoured: OrderedDict[Address, tuple[float, tuple[int, int, int]]] = OrderedDict()
        self._script: AsyncScript = redis.register_script(_SCRIPT)

    def favour(self, address: Address, *, rate: Rate, lasting: timedelta) -> None:
        """Gives a role holder another rate for a while; cached by this instance only."""
        self._favoured[address] = (self._clock.monotonic() + lasting.total_seconds(), _arguments(rate))
        self._favoured.move_to_end(address)
        if len(self._favoured) > MOST_FAVOURED:
            self._favoured.popitem(last=False)

    def terms(self, address: Address, nonce: str) -> ReplayTerms:
        """The keys and arguments for one request, for a script of one's own."""
        now = int(self._clock.now().timestamp() * 1e6)
        until, arguments = self._favoured.get(address, (float("-inf"), self._arguments))
        if until <= self._clock.monotonic():
            arguments = self._arguments
        return ReplayTerms(
            (f"{self._prefix}nonce:{address}:{nonce}", f"{self._prefix}rate:{address}"), (now, *arguments)
        )

    def check(self, answer: object) -> None:
        """Returns if the script's answer means admitted.

        Raises:
            Conflict: The nonce was used (`replayed`).
            RateLimited: The address called too often.
            Unavailable: The answer is none that the script gives.
        """
        match answer:
            case [0, 0]:
                return
            case [1, 0]:
                raise Conflict(
                    "this request was made before", hint="sign each request anew, with a new nonce", code="replayed"
                )
            case [2, int(wait)]:
                raise RateLimited("too many requests of this address", retry_after=timedelta(microseconds=wait))
            case _:
                raise Unavailable("the store's answer can't be read")

    async def admit(self, address: Address, nonce: str) -> None:
        """Admits one request.

        Raises:
            Conflict: The nonce was used.
            RateLimited: The address called too often.
            StoreUnavailable: Redis can't say, so nothing is accepted.
        """
        terms = self.terms(address, nonce)
        attempt = secrets.token_hex(8)  # the client of Redis asks again when an answer was lost; a caller can't know it
        with store_errors():
            answer = await self._script(keys=terms.keys, args=(*terms.arguments, attempt))
        self.check(answer)


def _arguments(rate: Rate) -> tuple[int, int, int]:
    """Of `muster_admit`, behind the time."""
    return (
        math.ceil(NONCE_KEPT.total_seconds() * 1000),
        max(1, round(rate.interval_s * 1e6)),
        round(rate.tolerance_s * 1e6),
    )
