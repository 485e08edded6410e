"""Limits of open connections, in total and per address, applied before anything is read from them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.http.rates import CallerAddresses, counted_as

LOCAL = "local"
"""Address of a caller on a unix socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on the open connections of a server."""

    connections: int = 16_384
    """Maximum number of concurrent connections."""
    per_address: int = 1024
    """Maximum open connections of one IPv4 address or one IPv6 /64. Only the total limit applies to trusted proxies."""


@dataclass(slots=True, eq=False)
class _Caller:
    """Open connections of one address, and those without a request in progress; both oldest first."""

    address: str
    trusted: bool
    open: OrderedDict[asyncio.Transport, None] = field(default_factory=OrderedDict)
    idle: OrderedDict[asyncio.Transport, None] = field(default_factory=OrderedDict)


class ConnectionGuard:
    """Counts open connections and refuses those over a limit. The cost of a check does not depend on their number.

    When the total limit is reached, a new connection replaces a connection of the address that has the most: the one
    idle for the longest, or the oldest one if all have requests in progress. Otherwise a few addresses could lock out
    all others. Connections of trusted proxies are never replaced.

    Args:
        limits: Maximum numbers of connections.
        callers: Knows the trusted proxies.
        refused: Called with the name of a limit each time it is reached.
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
        """Returns the total limit."""
        return self._most

    def fit(self, room: int) -> None:
        """Lowers the total limit to `room`, the number of connections for which there are file descriptors."""
        self._most = min(self._limits.connections, room)

    def admit(self, address: str, connection: asyncio.Transport) -> bool:
        """Counts a new connection as idle; returns False if a limit is reached.

        The caller releases each admitted connection. A connection closed to make room is aborted and released here.
        """
        trusted = self._callers.trusts(address)
        # A proxy's connections must not count for other callers of its network.
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
        )  # looked up again: `_make_room` may have closed the address's last connection
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
        """Removes an ended connection from the counts; has no effect if it is not counted."""
        caller = self._by_connection.pop(connection, None)
        if caller is None:
            return
        count = len(caller.open)
        del caller.open[connection]
        caller.idle.pop(connection, None)
        self._rank(caller, count)
        if not caller.open:
            del self._by_address[caller.address]

    def open_from(self, address: str) -> int:
        """Returns the number of open connections that count for this address."""
        caller = self._by_address.get(address) or self._by_address.get(counted_as(address))
        return 0 if caller is None else len(caller.open)

    def _make_room(self, count: int) -> bool:
        """Closes a connection of the address with the most; False if the new caller would have as many."""
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


def peer_address(peername: Any) -> str:  # noqa: ANN401 - as a transport gives it: a tuple, or text for unix sockets
    """The address at the other end of a connection."""
    return str(peername[0]) if isinstance(peername, tuple) else LOCAL
