"""The built-in limits of a server: connections at once, in all and by address, before anything is read from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

from protocol.clock import Clock
from protocol.rates import CallerAddresses, IpRates, Rate, counted_as


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """How much a server does at once for strangers."""

    connections: int = 2048
    """At a time, in all."""
    connections_per_address: int = 256
    """At a time, from one address or one /64 of IPv6. A trusted proxy may have all of them: it counts for itself."""
    rate: Rate = field(default_factory=lambda: Rate(count=500, per=timedelta(seconds=1), burst=2000))
    """Requests from one address."""
    patience: timedelta = timedelta(seconds=30)
    """How long an answer waits for a block that is not here yet, or for a reader that takes nothing."""
    idle: timedelta = timedelta(seconds=20)
    """From a connection's begin, or its last answer, to the end of the next request's head: who sends a byte now and
    then is cut off. Whoever keeps connections for later finds them closed, and opens them again."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose `X-Forwarded-For` is believed."""


_MOST_ADDRESSES = 4096
"""Addresses remembered before those without a connection are forgotten."""


class Guard:
    """Lets connections in, or closes them unread.

    Args:
        limits: How many.
        clock: Of the request rates.
        refused: Told the name of a limit each time it is reached.
    """

    def __init__(self, limits: ServingLimits, *, clock: Clock, refused: Callable[[str], None]) -> None:
        self.callers = CallerAddresses(limits.trusted_proxies)
        self.rates = IpRates(limits.rate, clock=clock)
        self._limits = limits
        self._refused = refused
        self._proxies = CallerAddresses(limits.trusted_proxies)
        self._open: dict[str, list[asyncio.BaseTransport]] = {}

    def factory(self, inner: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """A protocol factory that hands each connection it lets in to `inner`."""
        return lambda: _Gate(self, inner)

    def admit(self, transport: asyncio.BaseTransport) -> bool:
        """Counts a new connection; false if it is one too many."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else "local"
        counted = counted_as(address)
        living = [each for each in self._open.get(counted, ()) if not each.is_closing()]
        limit = None
        if len(self._open) > _MOST_ADDRESSES:
            self._sweep()
        if self._counted() >= self._limits.connections and self._alive() >= self._limits.connections:
            limit = "connections"
        if len(living) >= self._limits.connections_per_address and not self._is_proxy(address):
            limit = "connections-per-address"
        if limit is not None:
            self._refused(limit)
            self._open[counted] = living
            return False
        self._open[counted] = [*living, transport]
        return True

    def _is_proxy(self, address: str) -> bool:
        # What a trusted hop says before itself is believed, so the answer is another address than its own.
        return self._proxies.of(address, ("192.0.2.1",)) == "192.0.2.1" and address != "192.0.2.1"

    def _counted(self) -> int:
        return sum(len(each) for each in self._open.values())

    def _alive(self) -> int:
        """How many connections there are, those that ended since they were counted left out."""
        self._sweep()
        return self._counted()

    def _sweep(self) -> None:
        alive = {
            address: [each for each in transports if not each.is_closing()]
            for address, transports in self._open.items()
        }
        self._open = {address: transports for address, transports in alive.items() if transports}


class _Gate(asyncio.Protocol):
    """Stands before the real protocol until the connection is let in."""

    def __init__(self, guard: Guard, inner: Callable[[], asyncio.Protocol]) -> None:
        self._guard = guard
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("asyncio.Transport", transport)
        if not self._guard.admit(connection):
            connection.abort()
            return
        protocol = self._inner()
        connection.set_protocol(protocol)
        protocol.connection_made(connection)
