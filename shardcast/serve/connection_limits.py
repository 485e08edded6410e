"""Limits of an origin or a relay, and the protocol wrapper that enforces connection limits before reading."""

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
    """Limits of connections and requests of any caller."""

    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(connections=2048, per_address=256))
    """Concurrent connections, in total and per address."""
    rate: Rate = field(default_factory=lambda: Rate(count=500, per=timedelta(seconds=1), burst=2000))
    """Request rate of one address."""
    timeout: timedelta = timedelta(seconds=30)
    """Longest wait of a response for a block that has not arrived yet, or for a reader that takes no bytes."""
    idle: timedelta = timedelta(seconds=20)
    """Time from the start of a connection, or its last response, until the next request's head is complete. It also
    ends connections whose peer sends a byte now and then. Clients whose idle connections were closed reconnect."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of reverse proxies whose `X-Forwarded-For` is used."""


HIGH_WATER = 16 * 1024
"""Bytes that a connection may buffer before they count towards the budget of unread answers."""


def gated(
    guard: ConnectionGuard, answers: AnswerBudget, inner: Callable[[], asyncio.Protocol]
) -> Callable[[], asyncio.Protocol]:
    """Returns a protocol factory that passes admitted connections to `inner` and aborts all others unread."""
    return lambda: _Gate(guard, answers, inner)


class _Gate(asyncio.Protocol):
    """Wraps the real protocol of a connection, which is the only place that sees both its start and its end."""

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
