"""Limits of the service for its clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from protocol.http.serving.connections import ConnectionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of requests and connections.

    Args:
        answers: Maximum number of answers in the engine or waiting for it; further requests get a 429.
        choices: Maximum number of answers to one request.
        body_bytes: Maximum size of a request's body.
        unread_tokens: Maximum number of a streamed request's tokens that its client has not read yet.
        unread_for: Time after which a request is stopped whose client has read none of more than `unread_tokens`
            tokens. After a stall of the event loop, many tokens arrive before any client had its turn to read.
        pause: Time that a request waits while the service is paused or loads weights; then it gets a 503.
        drain: Time that a pause or a weight update waits for answers in progress.
        connections: Maximum numbers of open connections.
    """

    answers: int = 1024
    choices: int = 128
    body_bytes: int = 4 << 20
    unread_tokens: int = 4096
    unread_for: timedelta = timedelta(seconds=5)
    pause: timedelta = timedelta(minutes=10)
    drain: timedelta = timedelta(minutes=10)
    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(connections=2048, per_address=1024))
