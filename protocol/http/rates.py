"""Rate limits per IP or per other key, counted in memory; those of IPs before any signature is checked."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from cachetools import LRUCache

from protocol.errors import InvalidInput, RateLimited
from protocol.runtime.clock import Clock

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Rate limit: on average `count` calls per period `per`, with bursts of `burst` calls."""

    count: int
    per: timedelta
    burst: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.burst < 1 or self.per <= timedelta():
            raise InvalidInput(
                f"the numbers of a rate must be positive, not {self}", hint="correct the rate in the settings"
            )

    @classmethod
    def per_second(cls, rate: float, *, burst: int) -> Rate:
        """Returns the limit of a setting in calls per second, which may be a fraction; rounded to calls per minute."""
        return cls(count=max(1, round(rate * 60)), per=timedelta(minutes=1), burst=burst)

    @property
    def interval_s(self) -> float:
        """Seconds between two calls at the average rate."""
        return self.per.total_seconds() / self.count

    @property
    def tolerance_s(self) -> float:
        """Seconds by which calls may come earlier than at the average rate; this allows bursts."""
        return self.interval_s * (self.burst - 1)


HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Routes that monitoring systems call. They accept every protocol version and have a separate rate limit."""

HEALTH_RATE = Rate(count=20, per=timedelta(seconds=1), burst=100)
"""Rate limit of one IP on `HEALTH_PATHS`. It is separate, so that monitoring still works when an IP has used up its
rate on other paths.
"""


class KeyedRates:
    """Applies a rate limit to each key separately.

    Memory is bounded: the least recently used entries are dropped first.

    Args:
        rate: Rate limit of one key.
        clock: Clock that measures the rates.
        most: Maximum number of keys that are counted.
    """

    def __init__(self, rate: Rate, *, clock: Clock, most: int = 65_536) -> None:
        self._interval = rate.interval_s
        self._tolerance = rate.tolerance_s
        self._clock = clock
        self._due: LRUCache[str, float] = LRUCache(most)

    def wait_for(self, key: str) -> timedelta:
        """Counts one call and returns zero; or, beyond the rate, returns the time until the next allowed call."""
        now = self._clock.monotonic()
        due = max(self._due.get(key, now), now)
        ahead = due - now
        if ahead > self._tolerance:
            return timedelta(seconds=ahead - self._tolerance)
        self._due[key] = due + self._interval
        return timedelta()

    def __len__(self) -> int:
        return len(self._due)


class IpRates(KeyedRates):
    """One rate limit per IP.

    IPv6 callers are counted by /64, because one customer usually controls all of its addresses.
    """

    def admit(self, ip: str) -> None:
        """Counts one call, or refuses it.

        Raises:
            RateLimited: The caller exceeds its rate. `retry_after` is the time until the next allowed call.
        """
        if wait := self.wait_for(counted_as(ip)):
            raise RateLimited(f"too many requests from {ip}", retry_after=wait)


class CallerAddresses:
    """Finds a caller's IP.

    This is the peer of the connection, or the address that a trusted proxy reports.

    Args:
        trusted_proxies: Networks whose `X-Forwarded-For` is trusted; none by default.

    Raises:
        InvalidInput: An entry is not an IP network.
    """

    def __init__(self, trusted_proxies: Iterable[str] = ()) -> None:
        self._trusted: list[IpNetwork] = []
        for text in trusted_proxies:
            try:
                self._trusted.append(ipaddress.ip_network(text))
            except ValueError as error:
                raise InvalidInput(f"{text[:60]!r} is not a network", hint="write a network like 10.0.0.0/8") from error

    def of(self, peer: str | None, forwarded_for: Iterable[str] = ()) -> str:
        """Returns the caller's IP, as the outermost trusted proxy reports it.

        Args:
            peer: IP of the other end of the connection; None for a unix socket.
            forwarded_for: The values of `X-Forwarded-For`, in order.
        """
        if peer is None:
            return "local"
        if not self.trusts(peer):
            return peer
        seen = peer
        for hop in reversed([hop.strip() for value in forwarded_for for hop in value.split(",")]):
            if _parse(hop) is None:
                return seen
            seen = hop
            if not self.trusts(hop):
                return seen
        return seen

    def trusts(self, ip: str) -> bool:
        """Returns whether an IP belongs to a trusted proxy."""
        if not self._trusted:
            return False
        parsed = _parse(ip)
        return parsed is not None and any(parsed in network for network in self._trusted)


def _parse(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(ip)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def counted_as(ip: str) -> str:
    """Returns the unit by which callers are counted.

    This is the IPv4 address, or the /64 network of an IPv6 address, because all addresses in it usually belong to one
    customer.
    """
    if ":" not in ip:
        return ip
    parsed = _parse(ip)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return ip if parsed is None else str(parsed)
