"""ASGI middleware around all routes of a service.

Before the route, the middleware checks the rate per IP, the protocol version and the declared size. After the route, it
adds the request id, the supported and the agreed protocol version and deprecations to the response, and writes a log
line and metrics. Routes find the agreed version in `request.state.protocol_version`. A HEAD is served by the route of
GET, without the body. The middleware converts an unexpected error to a problem response and logs the traceback. For
speed, because every heartbeat passes through it, the middleware reads raw headers and prepares log lines only if they
will be written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import MusterError
from protocol.http.deprecation import Deprecation
from protocol.http.rates import HEALTH_PATHS, HEALTH_RATE, CallerAddresses, IpRates
from protocol.http.serving.bodies import RETRY_AFTER, BodyAccount
from protocol.http.serving.http import BODY_ACCOUNT
from protocol.http.serving.problem_answers import (
    CarriedError,
    ProblemForm,
    http_problem,
    problem_json,
    problem_response,
    unexpected,
)
from protocol.http.verification import SENT_METHOD, FastResponse, FastRoute, check_declared_size, too_large
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import generator
from protocol.versions import AGREED_HEADER, SPOKEN, VERSION_HEADER, VersionRange

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""HTTP methods that metrics count by name. All others count as `(other)`, so that clients can't add series by inventing
methods.
"""

SLOW_S = 1.0
"""Duration in seconds from which a successful request is logged at level INFO instead of DEBUG."""

_LOGGER_NAME = "protocol.access"
_log = get_logger(_LOGGER_NAME)
_levels = logging.getLogger(_LOGGER_NAME)

_VERSION = VERSION_HEADER.lower().encode("ascii")
_AGREED = AGREED_HEADER.lower().encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """HTTP limits that the middleware enforces."""

    body_limit: int
    """Maximum size of a request body, in bytes."""
    body_limits: Sequence[tuple[str, int]] = ()
    """Other maximum sizes of bodies, in bytes, by path prefix; the first matching prefix applies. Routes below these
    prefixes stream their bodies.
    """
    ip_rates: IpRates | None = None
    """Rate limits per IP; None for no limits."""
    callers: CallerAddresses
    """Trusted proxies, by which the middleware finds a caller's IP."""
    spoken: VersionRange = SPOKEN
    """Protocol versions that the service supports."""
    deprecations: Sequence[Deprecation] = ()
    """Routes and protocol versions that will end."""
    fast_routes: Mapping[tuple[str, str], FastRoute] = field(default_factory=dict)
    """Routes by method and path that the middleware calls itself, without the web framework."""
    form: ProblemForm = problem_json
    """Form of error responses."""


class HttpMetrics:
    """Counts and durations of answers, by route template.

    Templates instead of paths keep clients from adding series by inventing paths.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("method", "route", "status")
        self._answers = Counter("muster_http_answers", "Answers given", labels, registry=registry)
        self._seconds = Histogram(
            "muster_http_seconds",
            "Time from the first byte of a request to the last of its answer",
            ("route",),
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
        )
        self.open = 0
        gauge = Gauge("muster_http_open_requests", "Requests being answered", registry=registry)
        gauge.set_function(lambda: self.open)
        self._refused = Counter(
            "muster_http_refused", "Connections and requests that reached a limit", ("limit",), registry=registry
        )
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def refuse(self, limit: str) -> None:
        """Counts a connection or request that the server refused or closed because of a limit."""
        self._refused.labels(limit).inc()

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one response.

        Series are cached, because finding one by its labels takes longer than counting.
        """
        series = self._series.get((method, route, status))
        if series is None:
            series = (self._answers.labels(method, route, str(status)), self._seconds.labels(route))
            self._series[method, route, status] = series
        series[0].inc()
        series[1].observe(seconds)


class RequestMiddleware:
    """ASGI middleware around a service's routes."""

    def __init__(self, app: ASGIApp, *, settings: HttpLimits, metrics: HttpMetrics, clock: Clock) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._spoken = str(settings.spoken)
        self._health_rates = IpRates(HEALTH_RATE, clock=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = _RequestContext(
            scope,
            receive,
            send,
            spoken=self._spoken,
            limit=self._limit_of(scope["path"]),
            form=self._settings.form,
            deprecations=self._settings.deprecations,
        )
        started = self._clock.monotonic()
        self._metrics.open += 1
        try:
            await self._serve(context)
        finally:
            self._metrics.open -= 1
            self._record_response(context, self._clock.monotonic() - started)

    async def _serve(self, context: _RequestContext) -> None:
        scope = context.scope
        try:
            self._check_limits(context)
            fast_route = self._settings.fast_routes.get((scope["method"], scope["path"]))
            if fast_route is None:
                await self._app(scope, context.receive, context.send)
            else:
                context.route = scope["path"]
                await context.answer(await fast_route(scope, context.receive))
        except MusterError as error:
            await context.refuse(error)
        except HTTPException as error:  # from a fast route: for other routes, the framework answers these errors
            await context.respond(http_problem(error, instance=context.instance, form=self._settings.form))
        except ClientDisconnect:
            context.status = 499  # the status that nginx logs when the client has disconnected
        except Exception as error:  # noqa: BLE001 - any unexpected error is logged and answered with a 500
            if context.is_head_sent:  # the end of a route whose body is not wanted
                return
            await context.refuse(unexpected(error))

    def _check_limits(self, context: _RequestContext) -> None:
        """Checks rate, protocol version and declared size; also finds the caller's IP."""
        scope = context.scope
        forwarded, spoken, declared = _read_headers(scope)
        peer = scope.get("client")
        context.ip = self._settings.callers.of(peer[0] if peer else None, forwarded)
        scope["muster.ip"] = context.ip
        if scope["path"] in HEALTH_PATHS:
            self._health_rates.admit(context.ip)
            return
        if self._settings.ip_rates is not None:
            self._settings.ip_rates.admit(context.ip)
        ours = self._settings.spoken
        context.agree(ours.newest if spoken is None else ours.agree(VersionRange.parse(spoken)))
        check_declared_size(declared, context.limit)

    def _limit_of(self, path: str) -> int:
        """Returns the maximum size of a body at this path, in bytes."""
        for beginning, limit in self._settings.body_limits:
            if path.startswith(beginning):
                return limit
        return self._settings.body_limit

    def _record_response(self, context: _RequestContext, seconds: float) -> None:
        """Counts the response in the metrics and writes its log line."""
        template = context.template
        method = context.method if template and context.method in METHODS else "(other)"
        self._metrics.count(method, template or "(none)", context.status, seconds)
        quiet = context.status < 400 and seconds < SLOW_S
        level = logging.DEBUG if quiet else logging.WARNING if context.status >= 500 else logging.INFO
        if not _levels.isEnabledFor(level):
            return
        _log.log(
            level,
            "answered",
            method=method,
            path=context.scope["path"][:200],
            status=context.status,
            ms=round(seconds * 1000, 1),
            ip=context.ip,
            request=context.identifier,
        )


class _BodyNotWanted(Exception):
    """Ends a route that streams its body, for example a stream of events, in answer to a HEAD."""


class _RequestContext:
    """State of one request while the middleware serves it."""

    __slots__ = (
        "_deprecations",
        "_form",
        "_receive",
        "_received",
        "_send",
        "_size",
        "_spoken",
        "agreed",
        "identifier",
        "ip",
        "is_head_sent",
        "limit",
        "method",
        "route",
        "scope",
        "started",
        "status",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        spoken: str,
        limit: int,
        form: ProblemForm,
        deprecations: Sequence[Deprecation],
    ) -> None:
        self.method: str = scope["method"]
        self._received = scope  # the server adds the account of a body to its own scope while the body arrives
        self.scope = {**scope, "method": "GET", SENT_METHOD: "HEAD"} if self.method == "HEAD" else scope
        self.is_head_sent = False
        self.identifier = (
            f"{generator.getrandbits(64):016x}"  # predictable, as it only names the request in logs and responses
        )
        self.agreed: int | None = None
        self.ip = ""
        self.route = ""
        self.status = 500
        self.started = False
        self.limit = limit
        self._receive, self._send = receive, send
        self._spoken, self._size = spoken, 0
        self._deprecations = deprecations
        self._form = form
        self.scope["muster.request_id"] = self.identifier

    def agree(self, version: int) -> None:
        """Stores the protocol version of the request, for the route and for the response."""
        self.agreed = version
        self.scope.setdefault("state", {})["protocol_version"] = version

    @property
    def instance(self) -> str:
        """Returns the request's URN, which identifies it in problem responses."""
        return f"urn:muster:request:{self.identifier}"

    @property
    def template(self) -> str:
        """Returns the matched route's template; empty if there is none."""
        return self.route or str(getattr(self.scope.get("route"), "path", ""))

    async def receive(self) -> Message:
        """Passes the body on in pieces; raises at the limit.

        The limit holds even if the client declared a smaller size.
        """
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > self.limit:
                raise CarriedError(too_large(self.limit))
            account: BodyAccount | None = self._received.get(
                BODY_ACCOUNT
            )  # absent without `BoundedServer`, as in some tests
            if account is not None and account.refusal is not None:
                raise CarriedError(account.refusal, retry_after=RETRY_AFTER)
        return message

    async def send(self, message: Message) -> None:
        """Adds the middleware's headers to the response."""
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.identifier
            headers[VERSION_HEADER] = self._spoken
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Cache-Control", "no-store")  # most answers are for one caller only
            if self.status == HTTPStatus.METHOD_NOT_ALLOWED and "GET" in headers.get("Allow", "").split(", "):
                headers["Allow"] += ", HEAD"
            message["headers"] += self._version_headers()
        elif self.method == "HEAD" and message["type"] == "http.response.body":
            if not self.is_head_sent:
                self.is_head_sent = True
                await self._send({"type": "http.response.body"})
            if message.get("more_body"):
                raise _BodyNotWanted
            return
        await self._send(message)

    async def answer(self, answer: FastResponse) -> None:
        """Sends the response of a fast route with the middleware's headers."""
        self.started = True
        self.status = answer.status
        ours = [
            (b"x-request-id", self.identifier.encode("ascii")),
            (_VERSION, self._spoken.encode("ascii")),
            (b"x-content-type-options", b"nosniff"),
        ]
        headers = [*answer.headers, *ours, *self._version_headers()]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else answer.body})

    def _version_headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the header fields of the agreed protocol version and of the first matching deprecation."""
        if self.agreed is None:
            return []
        found = [(_AGREED, b"%d" % self.agreed)]
        for each in self._deprecations:
            if each.matches(version=self.agreed, method=self.scope["method"], template=self.template):
                return found + each.headers
        return found

    async def refuse(self, error: MusterError) -> None:
        """Responds with an error.

        If a response has begun, it raises the error instead, which breaks the connection.
        """
        if self.started:
            raise error
        await self.respond(problem_response(error, instance=self.instance, form=self._form))

    async def respond(self, response: Response) -> None:
        """Sends a response that the middleware itself made."""
        await response(self.scope, self._no_more, self.send)

    async def _no_more(self) -> dict[str, Any]:
        return {"type": "http.disconnect"}


def _read_headers(scope: Scope) -> tuple[list[str], str | None, str | None]:
    """Returns X-Forwarded-For, the protocol versions and the declared size of a request."""
    forwarded: list[str] = []
    spoken: str | None = None
    declared: str | None = None
    for name, value in scope["headers"]:
        if name == b"content-length":
            declared = value.decode("latin-1") if declared is None else declared
        elif name == b"x-forwarded-for":
            forwarded.append(value.decode("latin-1"))
        elif name == _VERSION:
            spoken = value.decode("latin-1") if spoken is None else spoken
    return forwarded, spoken, declared
