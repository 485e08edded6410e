"""The front door of a service: what happens to every request before and after its route, in one ASGI layer.

Rate per IP, version, size; then the route; then request id, version range, log line and metrics. An error that nobody
expected becomes a problem answer here and its traceback goes to the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.clock import Clock
from protocol.errors import MusterError
from protocol.problems import problem_response, unexpected
from protocol.rates import CallerAddresses, IpRates
from protocol.verification import check_declared_size
from protocol.versions import SPOKEN, VERSION_HEADER, VersionRange

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked for by machines next to us, and never refused for rate or version."""

SLOW_S = 1.0

_log = structlog.get_logger("protocol.access")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """What the front door holds requests to."""

    body_limit: int
    """Bytes of the largest body."""
    body_limits: Sequence[tuple[str, int]] = ()
    """Other limits, by the beginning of the path; the first that fits counts."""
    ip_rates: IpRates | None = None
    callers: CallerAddresses
    spoken: VersionRange = SPOKEN


class DoorMetrics:
    """Counts and times of answers, by route template, so that a hostile path can't make new series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("method", "route", "status")
        self.answers = Counter("muster_http_answers", "Answers given", labels, registry=registry)
        self.seconds = Histogram(
            "muster_http_seconds",
            "Time from the first byte of a request to the last of its answer",
            ("route",),
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
        )
        self.open = Gauge("muster_http_open_requests", "Requests being answered", registry=registry)


class FrontDoor:
    """The ASGI layer around a service's routes."""

    def __init__(self, app: ASGIApp, *, settings: DoorSettings, metrics: DoorMetrics, clock: Clock) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._spoken = str(settings.spoken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection's request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, receive, send, spoken=self._spoken, limit=self._limit_of(scope["path"]))
        started = self._clock.monotonic()
        self._metrics.open.inc()
        try:
            await self._serve(visit)
        finally:
            self._metrics.open.dec()
            self._note(visit, self._clock.monotonic() - started)

    async def _serve(self, visit: _Visit) -> None:
        scope = visit.scope
        try:
            headers = Headers(scope=scope)
            visit.ip = self._settings.callers.of(
                scope["client"][0] if scope.get("client") else None, headers.getlist("x-forwarded-for")
            )
            scope["muster.ip"] = visit.ip
            if scope["path"] not in HEALTH_PATHS:
                self._admit(visit.ip, headers, visit.limit)
            await self._app(scope, visit.receive, visit.send)
        except MusterError as error:
            await visit.refuse(error)
        except ClientDisconnect:
            visit.status = 499  # nginx's number for it; nobody is there to read an answer
        except Exception as error:  # noqa: BLE001 - the last line of defence; it is logged and answered
            await visit.refuse(unexpected(error))

    def _admit(self, ip: str, headers: Headers, limit: int) -> None:
        if self._settings.ip_rates is not None:
            self._settings.ip_rates.admit(ip)
        if (spoken := headers.get(VERSION_HEADER)) is not None:
            self._settings.spoken.agree(VersionRange.parse(spoken))
        check_declared_size(headers, limit)

    def _limit_of(self, path: str) -> int:
        for beginning, limit in self._settings.body_limits:
            if path.startswith(beginning):
                return limit
        return self._settings.body_limit

    def _note(self, visit: _Visit, seconds: float) -> None:
        route = visit.scope.get("route")
        template = str(getattr(route, "path", "(none)"))
        method = visit.scope["method"] if len(visit.scope["method"]) < 8 and route else "(other)"
        self._metrics.answers.labels(method, template, str(visit.status)).inc()
        self._metrics.seconds.labels(template).observe(seconds)
        quiet = visit.status < 400 and seconds < SLOW_S
        line = _log.debug if quiet else _log.warning if visit.status >= 500 else _log.info
        line(
            "answered",
            method=method,
            path=visit.scope["path"][:200],
            status=visit.status,
            ms=round(seconds * 1000, 1),
            ip=visit.ip,
            request=visit.identifier,
        )


class _Visit:
    """One request on its way through the door."""

    __slots__ = ("_limit", "_receive", "_send", "_size", "_spoken", "identifier", "ip", "scope", "started", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, spoken: str, limit: int) -> None:
        self.scope = scope
        self.identifier = secrets.token_hex(8)
        self.ip = ""
        self.status = 500
        self.started = False
        self._receive, self._send = receive, send
        self._spoken, self._limit, self._size = spoken, limit, 0
        scope["muster.request_id"] = self.identifier

    @property
    def limit(self) -> int:
        return self._limit

    async def receive(self) -> Message:
        """Passes the body on, and stops it at the limit whatever its length was said to be."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > self._limit:
                # The framework's own kind: FastAPI would turn any other into a 400.
                raise HTTPException(413, f"the body is larger than {self._limit} bytes")
        return message

    async def send(self, message: Message) -> None:
        """Adds our headers to the answer."""
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.identifier
            headers[VERSION_HEADER] = self._spoken
            headers.setdefault("X-Content-Type-Options", "nosniff")
        await self._send(message)

    async def refuse(self, error: MusterError) -> None:
        """Answers with an error, unless an answer has begun already; then the connection has to break off."""
        if self.started:
            raise error
        response = problem_response(error, instance=f"urn:muster:request:{self.identifier}")
        await response(self.scope, self._no_more, self.send)

    async def _no_more(self) -> dict[str, Any]:
        return {"type": "http.disconnect"}
