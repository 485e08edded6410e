"""Connections at once, in all and by address, refused before anything is read from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.http.rates import CallerAddresses, counted_as

LOCAL = "local"
"""Address of a caller on a unix socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on the open connections of a server."""

    connections: int = 16_384
    """At a time, in all."""
    per_address: int = 1024
    """At a time, from one IPv4 address or one IPv6 /64. Trusted proxies are limited in all only."""


class ConnectionGuard:
    """Counts open connections and refuses those over a limit. An attempt costs the same however many are open.

    Args:
        limits: How many.
        callers: Knows the trusted proxies.
        refused: Called with the name of a limit each time it is reached.
    """

    def __init__(self, limits: ConnectionLimits, *, callers: CallerAddresses, refused: Callable[[str], None]) -> None:
        self._limits = limits
        self._most = limits.connections
        self._callers = callers
        self._refused = refused
        self._open: Counter[str] = Counter()
        self._total = 0

    @property
    def most(self) -> int:
        """Connections that it lets in, in all."""
        return self._most

    def fit(self, room: int) -> None:
        """Lowers the limit to the connections that there are descriptors for."""
        self._most = min(self._limits.connections, room)

    def admit(self, address: str) -> bool:
        """Counts a new connection; false if it is one too many. Each one admitted must be released once."""
        counted = counted_as(address)
        if self._total >= self._most:
            self._refused("connections")
            return False
        if self._open[counted] >= self._limits.per_address and not self._callers.trusts(address):
            self._refused("connections-per-address")
            return False
        self._open[counted] += 1
        self._total += 1
        return True

    def release(self, address: str) -> None:
        """Forgets a connection that was admitted and has ended."""
        counted = counted_as(address)
        self._total -= 1
        self._open[counted] -= 1
        if self._open[counted] <= 0:
            del self._open[counted]

    def open_from(self, address: str) -> int:
        """Open connections that count for this address."""
        return self._open.get(counted_as(address), 0)

    def __len__(self) -> int:
        return self._total


def peer_address(peername: Any) -> str:  # noqa: ANN401 - as a transport gives it: a tuple, or text for unix sockets
    """The address at the other end of a connection."""
    return str(peername[0]) if isinstance(peername, tuple) else LOCAL
