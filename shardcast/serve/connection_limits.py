"""Limits of an origin or a relay for strangers, and the gate that counts connections before anything is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

from protocol.http.rates import Rate
from protocol.http.serving.connections import ConnectionGuard, ConnectionLimits, peer_address


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """How much a server does at once for strangers."""

    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(connections=2048, per_address=256))
    """At a time."""
    rate: Rate = field(default_factory=lambda: Rate(count=500, per=timedelta(seconds=1), burst=2000))
    """Requests from one address."""
    patience: timedelta = timedelta(seconds=30)
    """How long an answer waits for a block that is not here yet, or for a reader that takes nothing."""
    idle: timedelta = timedelta(seconds=20)
    """From a connection's begin, or its last answer, to the end of the next request's head: who sends a byte now and
    then is cut off. Whoever keeps connections for later finds them closed, and opens them again."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose `X-Forwarded-For` is believed."""


def gated(guard: ConnectionGuard, inner: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
    """A protocol factory that hands each connection that the guard lets in to `inner`, and closes the others unread."""
    return lambda: _Gate(guard, inner)


class _Gate(asyncio.Protocol):
    """Stands between a connection and its real protocol, because only who stands there learns of its end."""

    def __init__(self, guard: ConnectionGuard, inner: Callable[[], asyncio.Protocol]) -> None:
        self._guard = guard
        self._make_inner = inner
        self._inner: asyncio.Protocol | None = None
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._peer = peer_address(transport.get_extra_info("peername"))
        if not self._guard.admit(self._peer):
            cast("asyncio.Transport", transport).abort()
            return
        self._inner = self._make_inner()
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._guard.release(self._peer)
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
