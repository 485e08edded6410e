"""Limits of an origin or a relay for strangers, and the gate that counts connections before anything is read."""

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
    """Limits on concurrent work for strangers."""

    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(connections=2048, per_address=256))
    """At a time."""
    rate: Rate = field(default_factory=lambda: Rate(count=500, per=timedelta(seconds=1), burst=2000))
    """Requests from one address."""
    timeout: timedelta = timedelta(seconds=30)
    """Longest wait of a response for a future block, or for a reader that reads nothing."""
    idle: timedelta = timedelta(seconds=20)
    """From a connection's begin, or its last answer, to the end of the next request's head: who sends a byte now and
    then is cut off. Clients that keep idle connections find them closed and reconnect."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose `X-Forwarded-For` is believed."""


HIGH_WATER = 16 * 1024
"""Bytes that a connection may buffer uncounted."""


def gated(
    guard: ConnectionGuard, answers: AnswerBudget, inner: Callable[[], asyncio.Protocol]
) -> Callable[[], asyncio.Protocol]:
    """Makes a protocol factory that hands admitted connections to `inner`, closes others unread, and counts answers."""
    return lambda: _Gate(guard, answers, inner)


class _Gate(asyncio.Protocol):
    """Stands between a connection and its real protocol, because only who stands there learns of its end."""

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
