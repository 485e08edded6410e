"""Limits of connections and requests at an origin or a relay.

An asyncio protocol enforces the limits of connections before it reads a byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

from protocol.http.rates import Rate
from protocol.http.serving.answers import AnswerBudget
from protocol.http.serving.connections import ConnectionGuard, ConnectionLimits, peer_address


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """Limits for the connections and requests that a server accepts."""

    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(connections=2048, per_address=256))
    """Maximum number of concurrent connections, in total and per IP address."""
    rate: Rate = field(default_factory=lambda: Rate(count=500, per=timedelta(seconds=1), burst=2000))
    """Maximum request rate of one IP address."""
    timeout: timedelta = timedelta(seconds=30)
    """Longest time that a response waits for a block to arrive at this server, or for the reader to take data."""
    idle: timedelta = timedelta(seconds=20)
    """Longest time until the head of a request is complete, from the start of the connection or from the last response.
    After this time the server closes the connection, even if the peer still sends some bytes. Clients reconnect."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of reverse proxies; the server takes the address of their callers from `X-Forwarded-For`."""


HIGH_WATER = 16 * 1024
"""Number of bytes that a connection may buffer before its unread bytes count towards the memory budget of answers."""


def gated(
    guard: ConnectionGuard, answers: AnswerBudget, inner: Callable[[], asyncio.Protocol]
) -> Callable[[], asyncio.Protocol]:
    """Returns a protocol factory that applies the limits to each new connection.

    Args:
        guard: Limits of connections. A connection that the guard does not admit is aborted before a byte is read.
        answers: Memory budget of answers that readers have not taken.
        inner: Factory of the protocol that handles admitted connections.
    """
    return lambda: _Gate(guard, answers, inner)


class _Gate(asyncio.Protocol):
    """Wraps the protocol of one connection, and enforces limits of connections and answers.

    The connection counts towards the connection limits from its start to its end. While the reader leaves more than
    `HIGH_WATER` bytes unread, the connection counts towards the memory budget; after the budget's time-out, the gate
    aborts the connection.
    """

    def __init__(self, guard: ConnectionGuard, answers: AnswerBudget, inner: Callable[[], asyncio.Protocol]) -> None:
        self._guard = guard
        self._answers = answers
        self._make_inner = inner
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._peer = peer_address(transport.get_extra_info("peername"))
        if not self._guard.admit(self._peer, transport):
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)
        self._inner = self._make_inner()
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None and self._transport is not None:
            self._guard.release(self._transport)
            self._drained()
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None and self._transport is not None:
            self._inner.pause_writing()
            timeout_s = self._answers.hold(self._transport, self._peer)
            self._stalled = asyncio.get_running_loop().call_later(timeout_s, self._transport.abort)

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._drained()
            self._inner.resume_writing()

    def _drained(self) -> None:
        if self._stalled is not None and self._transport is not None:
            self._stalled.cancel()
            self._stalled = None
            self._answers.release(self._transport)
