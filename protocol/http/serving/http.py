"""HTTP server of every service except shardcast: uvicorn with additional limits.

uvicorn and httptools do not limit heads, trailers, bodies in memory, buffered answers and time. The deadlines of all
connections are checked once a second, because a timer for each request would cost every heartbeat two system calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import httptools
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from protocol.errors import InvalidInput, MusterError
from protocol.http.rates import CallerAddresses, counted_as
from protocol.http.serving.answers import LEAST_RATE, AnswerBudget
from protocol.http.serving.bodies import UNCOUNTED, BodyAccount, BodyBudget
from protocol.http.serving.connections import ConnectionGuard, ConnectionLimits, peer_address
from protocol.http.serving.problem_answers import problem_response
from protocol.runtime.clock import Clock

MOST_HEAD = 32 * 1024
"""Maximum size of a request's first line and headers, in bytes."""

MOST_FIELDS = 128
"""Maximum number of header fields in a request. Each costs about 200 bytes of memory, however short it is."""

MOST_PIPELINED = 2
"""Maximum number of pipelined requests that wait on a connection. Muster's clients do not pipeline."""

HEAD_S = 20.0
"""Time limit in seconds for the head of a request. It begins with the connection, or with the first byte after an
answer.
"""

BODY_S = 30.0
"""Time limit in seconds for the body of a request, from the end of the head. Each `LEAST_RATE` bytes add a second."""

LINGER_S = 10.0
"""Time in seconds for which the rest of a request is read and dropped after its answer. Closing a connection with
unread bytes would discard the answer.
"""

MOST_DROPPED = 1 << 20
"""Maximum number of bytes that are read and dropped after a request was refused."""

KEEP_ALIVE_S = 75
"""Maximum pause between two requests on a connection, in seconds."""

BODY_ACCOUNT = "muster.body"
"""Key of a request's `BodyAccount` in its ASGI scope. A body of at most `UNCOUNTED` bytes has none."""


HEAD_HINT = "send fewer and shorter header fields, such as cookies, and a shorter URL"


class HeadTooLarge(MusterError):
    """The head of a request has too many bytes or fields."""

    code = "head-too-large"
    status = 431


class TooSlow(MusterError):
    """A request did not arrive within its time limit."""

    code = "too-slow"
    status = 408
    retryable = True


@dataclass(slots=True, kw_only=True)
class Serving:
    """Limits and state that all connections of one server share."""

    guard: ConnectionGuard
    bodies: BodyBudget
    answers: AnswerBudget
    callers: CallerAddresses
    clock: Clock
    refused: Callable[[str], None]
    streams: tuple[str, ...] = ()
    """Path prefixes of routes that authenticate the client and then write each piece of the body before they read the
    next. Flow control bounds the memory of these bodies, so they are not counted and never refused half-way.
    """
    now: float = 0.0
    """Monotonic time in seconds at the last tick of the server, up to 0.1 s ago."""

    @classmethod
    def of(
        cls,
        limits: ConnectionLimits,
        *,
        callers: CallerAddresses,
        clock: Clock,
        refused: Callable[[str], None],
        streams: tuple[str, ...] = (),
    ) -> Serving:
        """Creates the limits and state of a new server.

        Args:
            limits: Maximum numbers of connections.
            callers: Trusted proxies.
            clock: Clock that measures the time limits.
            refused: Function that is called with the name of a limit each time that limit is reached.
            streams: Path prefixes of routes that stream their bodies.
        """
        return cls(
            guard=ConnectionGuard(limits, callers=callers, refused=refused),
            bodies=BodyBudget(refused=refused),
            answers=AnswerBudget(callers=callers, refused=refused),
            callers=callers,
            clock=clock,
            refused=refused,
            streams=streams,
        )


class BoundedProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection with bounds on the memory and time that its peer can occupy.

    Args:
        serving: Limits and state shared with other connections.
        uvicorns: Arguments that uvicorn passes to the constructor of every protocol.
    """

    def __init__(self, *, serving: Serving, **uvicorns: Any) -> None:  # noqa: ANN401 - uvicorn's own arguments
        super().__init__(**uvicorns)
        self._serving = serving
        self._peer: str | None = None
        self._deaf = False
        """Whether the connection serves no further requests; arriving bytes are dropped."""
        self._dropped = 0
        self._in_head = False
        self._in_body = False
        self._unparsed = 0
        """Number of bytes of a head, chunk header or trailer for which the parser has not called back."""
        self._deadline: float | None = None
        self._drained_by: float | None = None
        self._arrived = 0
        self._account: BodyAccount | None = None
        self._running: RequestResponseCycle | None = None
        self._error: MusterError | None = None

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Counts the connection; closes it at once if a limit is reached."""
        peer = peer_address(transport.get_extra_info("peername"))
        if not self._serving.guard.admit(peer, transport):
            self._deaf = True
            transport.abort()
            return
        self._peer = peer
        super().connection_made(transport)
        transport.set_write_buffer_limits(
            0
        )  # so that `pause_writing` is called as soon as the kernel does not accept all bytes
        self._deadline = self._serving.now + HEAD_S

    def connection_lost(self, exc: Exception | None) -> None:
        """Releases all counters of the connection."""
        if self._peer is None:
            return
        self._serving.guard.release(self.transport)
        self._serving.answers.release(self.transport)
        self._deaf = True
        super().connection_lost(exc)
        self._disconnect()
        for cycle, _ in self.pipeline:  # pipelined requests that will not be served
            _close_account(cycle)
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Passes received bytes to the parser, at most `MOST_HEAD` bytes of a head."""
        if self._deaf:
            self._dropped += len(data)
            if self._dropped > MOST_DROPPED:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if self._deadline is None and self._is_idle():
            self._deadline = self._serving.now + HEAD_S
        size = self._fitting(len(data))
        if size == len(data):  # the common case, for which no memoryview is created
            self._feed(data)
            return
        rest = memoryview(data)
        while rest and self._feed(rest[:size]):
            rest = rest[size:]
            size = self._fitting(len(rest))

    def pause_writing(self) -> None:
        """Counts the bytes that the kernel has not accepted, and sets a deadline for them."""
        super().pause_writing()
        scope = None if self._running is None else cast("dict[str, Any]", self._running.scope)
        caller = self._peer or "" if scope is None else self._caller(scope)
        self._drained_by = self._serving.now + self._serving.answers.hold(self.transport, caller)

    def resume_writing(self) -> None:
        """Continues an answer after the client has read its buffered part."""
        self._drained_by = None
        self._serving.answers.release(self.transport)
        super().resume_writing()

    def _fitting(self, size: int) -> int:
        # A body is passed on in pieces too, because the head of the next request may begin in the same bytes.
        return min(size, MOST_HEAD if self._in_body else MOST_HEAD - self._unparsed)

    def _feed(self, data: bytes | memoryview) -> bool:
        """Passes bytes to the parser; returns False if the connection is refused or closing."""
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No upgrade (to WebSocket, for example) is supported. The request is served without the upgrade. After its
            # answer the connection is closed, because the client may send bytes of the other protocol.
            self._deaf = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._refuse(
                self._error
                or InvalidInput(
                    "this is not a valid HTTP/1.1 request", hint="use an HTTP/1.1 client, with https if the URL says so"
                ),
                limit="malformed",
            )
        else:
            if self._unparsed >= MOST_HEAD:
                where = "chunk header or trailers" if self._in_body else "head"
                self._refuse(
                    HeadTooLarge(f"the request's {where} has more than {MOST_HEAD} bytes", hint=HEAD_HINT), limit="head"
                )
        return not self._deaf

    # Callbacks of the parser, which turns their exceptions into a parser error in `_feed`

    def on_message_begin(self) -> None:
        """Records that the head of a request begins."""
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header field; refuses a trailer field."""
        if not self._in_head:
            # uvicorn would add the trailer field to the headers while a route reads them.
            raise self._wrong(InvalidInput("trailers are not accepted", hint="send these fields as headers"))
        if len(self.headers) >= MOST_FIELDS:
            raise self._wrong(HeadTooLarge(f"the request has more than {MOST_FIELDS} header fields", hint=HEAD_HINT))
        HttpToolsProtocol.on_header(
            self, name, value
        )  # not `super()`, which is slower: each heartbeat has ten header fields

    def on_headers_complete(self) -> None:
        """Starts the request, or queues it behind the request that is being answered."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise self._wrong(
                InvalidInput(
                    f"more than {MOST_PIPELINED} pipelined requests wait on this connection",
                    hint="wait for each answer before the next request",
                )
            )
        super().on_headers_complete()  # raises for a malformed target, before the state below is set
        self._in_head = False
        self._in_body = True
        self._unparsed = 0
        self._deadline = self._serving.now + BODY_S
        self._arrived = 0
        self._account = None

    def on_body(self, body: bytes) -> None:
        """Adds a piece of the body if it fits into the budget, and drops it otherwise."""
        self._unparsed = 0
        if self.cycle.response_complete or (self._account is not None and self._account.refusal is not None):
            return  # the piece is dropped
        self._arrived += len(body)
        if self._deadline is not None:
            self._deadline += len(body) / LEAST_RATE
        if self._arrived <= UNCOUNTED or self._count(len(body)):
            super().on_body(body)
        else:
            self.cycle.message_event.set()  # wakes the waiting route; the middleware then raises `refusal`

    def on_message_complete(self) -> None:
        """Ends the body and its deadline."""
        self._in_body = False
        self._unparsed = 0
        self._deadline = None
        super().on_message_complete()

    # Methods that uvicorn calls

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401 - an ASGI application
        self._running = cycle
        self._serving.guard.busy(self.transport)

        async def accounted(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
            try:
                if self.flow.write_paused:
                    await self.flow.drain()  # otherwise a second answer would be buffered but not counted
                if not cycle.disconnected:
                    await app(scope, receive, send)
            finally:
                cycle.body = bytearray()  # frees an unread body, because the connection may stay open for a long time
                _close_account(cycle)

        super()._start_asgi_task(cycle, accounted)

    def on_response_complete(self) -> None:
        """Starts the time in which the client may send the rest of the body."""
        self._serving.guard.idle(self.transport)
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete:
            self._deadline = self._serving.now + LINGER_S

    def enforce_deadlines(self, elapsed: float) -> None:
        """Closes the connection if its peer is too slow.

        Args:
            elapsed: Seconds since the last call.
        """
        now = self._serving.now
        if self._drained_by is not None and now > self._drained_by:
            self._serving.refused("stalled")
            self.transport.abort()
        elif self._deadline is not None and self.flow.read_paused:
            self._deadline += elapsed  # the server itself paused reading, so this time does not count
        elif self._deadline is not None and now > self._deadline and not self.transport.is_closing():
            in_body = self._in_body
            if not self._deaf:
                detail = f"the request's {'body' if in_body else 'head'} did not arrive in time"
                self._refuse(
                    TooSlow(detail, hint="send the request over a faster connection, or send less at a time"),
                    limit="slow",
                )
            if self._deadline is not None:
                self.transport.close()

    # Helpers

    def _count(self, size: int) -> bool:
        """Counts a piece of a body beyond `UNCOUNTED` bytes; returns False if it does not fit."""
        if self._account is None:
            scope = cast("dict[str, Any]", self.cycle.scope)
            if scope["path"].startswith(self._serving.streams):
                return True
            caller = counted_as(self._caller(scope))
            self._account = scope[BODY_ACCOUNT] = BodyAccount(self._serving.bodies, caller)
            size = self._arrived - UNCOUNTED
        return self._account.take(size)

    def _caller(self, scope: dict[str, Any]) -> str:
        forwarded = (value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for")
        return self._serving.callers.of(self._peer, forwarded)

    def _wrong(self, error: MusterError) -> MusterError:
        self._error = error
        return error

    def _refuse(self, error: MusterError, *, limit: str) -> None:
        """Answers with an error and reads no more requests from the connection.

        No error is sent while an earlier request is unanswered, or if the answer to this request has begun.
        """
        self._serving.refused(limit)
        self._deaf = True
        # HTTP answers must have the order of the requests, so an error can't overtake the answer to an earlier request.
        of_ours = self._in_body and not self.pipeline and not self.cycle.response_started
        running = self._running
        if not self._in_body and running is not None and not running.response_complete:
            # The malformed bytes follow a request that is being answered. The connection is closed after that answer.
            running.keep_alive = False
            self._deadline = None
            return
        if of_ours or not self._in_body:
            answer = problem_response(error)
            lines = [STATUS_LINE[answer.status_code], *(b"%s: %s\r\n" % header for header in answer.raw_headers)]
            self.transport.write(b"".join([*lines, b"connection: close\r\n\r\n", bytes(answer.body)]))
        self._disconnect()
        self._unset_keepalive_if_required()
        self._deadline = self._serving.now + LINGER_S
        self.transport.write_eof()

    def _is_idle(self) -> bool:
        return self._running is None or self._running.response_complete

    def _disconnect(self) -> None:
        """Tells the running request that the client disconnected.

        uvicorn tells only the newest request.
        """
        if self._running is not None and not self._is_idle():
            self._running.disconnected = True
            self._running.message_event.set()


class BoundedServer(uvicorn.Server):
    """uvicorn's server with `BoundedProtocol`.

    Args:
        app: Application to serve.
        serving: Limits and state that its connections share.
        drain_s: Maximum time in seconds that open requests may take to end when the server stops.
        backlog: Maximum number of connections that wait to be accepted.
    """

    def __init__(self, app: FastAPI, *, serving: Serving, drain_s: int, backlog: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, serving=serving)),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # `CallerAddresses` evaluates X-Forwarded-For
                timeout_graceful_shutdown=drain_s,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=backlog,
                lifespan="on",
            )
        )
        self._serving = serving
        self._serving.now = self._enforced_at = serving.clock.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Checks the deadlines of all connections once a second; uvicorn calls it every 0.1 s."""
        serving = self._serving
        serving.now = serving.clock.monotonic()
        if counter % 10 == 0:
            elapsed, self._enforced_at = serving.now - self._enforced_at, serving.now
            for connection in list(self.server_state.connections):
                cast("BoundedProtocol", connection).enforce_deadlines(elapsed)
        return await super().on_tick(counter)


def _close_account(cycle: RequestResponseCycle) -> None:
    account = cast("dict[str, Any]", cycle.scope).get(BODY_ACCOUNT)
    if account is not None:
        account.close()
