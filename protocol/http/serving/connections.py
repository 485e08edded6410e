"""Limits open connections, in total and per address, before any byte is read from them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.http.rates import CallerAddresses, counted_as

LOCAL = "local"
"""Address under which callers on a unix socket are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on the open connections of a server."""

    connections: int = 16_384
    """Maximum number of concurrent connections."""
    per_address: int = 1024
    """Maximum number of connections of one IPv4 address or IPv6 /64. It does not apply to trusted proxies."""


@dataclass(slots=True, eq=False)
class _Caller:
    """Open connections of one address.

    `idle` contains those without a request in progress. Both are ordered from the oldest to the newest.
    """

    address: str
    trusted: bool
    open: OrderedDict[asyncio.Transport, None] = field(default_factory=OrderedDict)
    idle: OrderedDict[asyncio.Transport, None] = field(default_factory=OrderedDict)


class ConnectionGuard:
    """Counts open connections and refuses those beyond a limit.

    The cost of a check does not depend on the number of connections.

    When the total limit is reached, a new connection replaces one of the address that has the most connections.
    Otherwise a few addresses could lock out all others. The connection that has been idle for the longest time is
    closed; if all have requests in progress, the oldest one. Connections of trusted proxies are never replaced.

    Args:
        limits: Maximum numbers of connections.
        callers: Trusted proxies.
        refused: Function that is called with the name of a limit each time that limit is reached.
    """

    def __init__(self, limits: ConnectionLimits, *, callers: CallerAddresses, refused: Callable[[str], None]) -> None:
        self._limits = limits
        self._most = limits.connections
        self._callers = callers
        self._refused = refused
        self._by_address: dict[str, _Caller] = {}
        self._by_connection: dict[asyncio.Transport, _Caller] = {}
        self._by_count: dict[int, OrderedDict[_Caller, None]] = {}
        self._busiest = 0

    @property
    def most(self) -> int:
        """Returns the maximum total number of connections."""
        return self._most

    def fit(self, room: int) -> None:
        """Lowers the total limit to `room`, the number of connections for which there are file descriptors."""
        self._most = min(self._limits.connections, room)

    def admit(self, address: str, connection: asyncio.Transport) -> bool:
        """Counts a new connection as idle; returns False if a limit is reached.

        The server must call `release` for each admitted connection when it ends. A connection that this method closes
        to make room is released already.
        """
        trusted = self._callers.trusts(address)
        # A proxy is counted by its full address, so that its connections don't count for others in its /64 network.
        counted = address if trusted else counted_as(address)
        caller = self._by_address.get(counted)
        count = 0 if caller is None else len(caller.open)
        if count >= self._limits.per_address and not trusted:
            self._refused("connections-per-address")
            return False
        if len(self) >= self._most and not self._make_room(0 if trusted else count):
            self._refused("connections")
            return False
        caller = self._by_address.get(
            counted
        )  # looked up again, because `_make_room` may have closed the last connection of this address
        if caller is None:
            caller = self._by_address[counted] = _Caller(counted, trusted)
        caller.open[connection] = caller.idle[connection] = None
        self._by_connection[connection] = caller
        self._rank(caller, count)
        return True

    def busy(self, connection: asyncio.Transport) -> None:
        """Records that a connection has a request in progress."""
        caller = self._by_connection.get(connection)
        if caller is not None:
            caller.idle.pop(connection, None)

    def idle(self, connection: asyncio.Transport) -> None:
        """Records that a connection has no request in progress."""
        caller = self._by_connection.get(connection)
        if caller is not None:
            caller.idle[connection] = None

    def release(self, connection: asyncio.Transport) -> None:
        """Removes an ended connection from the counts; ignores one that is not counted."""
        caller = self._by_connection.pop(connection, None)
        if caller is None:
            return
        count = len(caller.open)
        del caller.open[connection]
        caller.idle.pop(connection, None)
        self._rank(caller, count)
        if not caller.open:
            del self._by_address[caller.address]

    def _make_room(self, count: int) -> bool:
        """Closes a connection of the address that has the most connections.

        `count` is the number of connections of the new caller. If the caller would then have at least as many as that
        address, the method closes nothing and returns False.
        """
        if count + 1 >= self._busiest:
            return False
        caller = next(iter(self._by_count[self._busiest]))
        connection = next(iter(caller.idle or caller.open))
        self._refused("connections-closed")
        self.release(connection)
        connection.abort()
        return True

    def _rank(self, caller: _Caller, former: int) -> None:
        """Updates the index of callers by number of connections, after a change by one."""
        if caller.trusted:
            return
        count = len(caller.open)
        if former:
            equals = self._by_count[former]
            del equals[caller]
            if not equals:
                del self._by_count[former]
        if count:
            self._by_count.setdefault(count, OrderedDict())[caller] = None
        if count > self._busiest or (former == self._busiest and former not in self._by_count):
            self._busiest = count

    def __len__(self) -> int:
        return len(self._by_connection)


def peer_address(peername: Any) -> str:  # noqa: ANN401 - a tuple, or text for unix sockets
    """Returns the IP at the other end of a connection, or `LOCAL` for a unix socket."""
    return str(peername[0]) if isinstance(peername, tuple) else LOCAL
