"""HTTP server of origins and relays; both have the same routes.

    GET /v1/probe                                   256 KiB of random bytes, to measure the bandwidth
    GET /v1/versions                                listing of versions; with ?follow=1 a stream: a line for each change
    GET /v1/versions/{version}/{attempt}/manifest   stream of the manifest's lines from number ?from=N on, to the seal
    GET /v1/versions/{version}/{attempt}/files/{n}  a Range of file n; each block is sent as soon as it is present
    GET /healthz, /readyz, /metrics                 liveness, readiness, Prometheus metrics

The server uses aiohttp instead of `protocol.http.serving.service`, because aiohttp can send files by `sendfile`
(docs/decisions/0012).
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from protocol.errors import InvalidInput, MusterError, NotFound, RateLimited, Unavailable
from protocol.http.parameters import check_parameters
from protocol.http.problems import MEDIA_TYPE, problem_of
from protocol.http.rates import HEALTH_PATHS, HEALTH_RATE, CallerAddresses, IpRates
from protocol.http.serving.answers import AnswerBudget
from protocol.http.serving.connections import ConnectionGuard
from protocol.http.serving.descriptors import connection_room, raise_descriptor_limit
from protocol.http.serving.metrics_page import MetricsPage
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.randomness import token_bytes
from shardcast.local_version import LocalVersion
from shardcast.manifest.manifest import FileProgress, VersionKey
from shardcast.manifest.records import BLOCK, MOST_ATTEMPT, MOST_VERSION
from shardcast.metrics import ServingMetrics
from shardcast.serve.connection_limits import ServingLimits, gated
from shardcast.serve.sender import RangeSender
from shardcast.serve.version_index import VersionIndex

PROBE_BYTES = 1 << 18
"""Size of the answer to a probe, in bytes."""
KEEP_ALIVE = timedelta(seconds=5)
"""Time without a new line after which a stream sends an empty line, which shows that the server is alive."""

MOST_RANGE = 256 * BLOCK
"""Maximum number of bytes in one response. The server refuses larger ranges, because one request could otherwise occupy
a connection for hours."""

_PROBE = "/v1/probe"
_VERSIONS = "/v1/versions"
_MANIFEST = "/v1/versions/{version}/{attempt}/manifest"
_FILE = "/v1/versions/{version}/{attempt}/files/{file}"
_PARAMETERS = {_PROBE: (), _VERSIONS: ("follow",), _MANIFEST: ("from",), _FILE: ()}
"""Query parameters of each route; a request with any other parameter is refused."""

_MOST_FIELDS = 32
"""Maximum number of header fields in a request."""
_MOST_FIELD = 1024
"""Maximum number of bytes of the request line and of each header field, so that a request's head has at most 32 KiB."""

_NDJSON = "application/x-ndjson"
_RANGE = re.compile(r"bytes=([0-9]{1,14})-([0-9]{1,14})")
_NUMBER = re.compile(r"[0-9]{1,16}")

Check = Callable[[], Awaitable[None]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves the versions of an index over HTTP; an async context manager.

    Args:
        versions: The versions to serve.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free port, whose number is then in the attribute `port`.
        tls: TLS context with the certificate for https; None if a reverse proxy provides TLS.
        limits: Limits of connections and requests.
        registry: Prometheus registry for the metrics; a new one by default.
        check: Readiness check; it raises a `MusterError` if the server is not ready.
        clock: Clock; the system clock by default.
    """

    def __init__(
        self,
        versions: VersionIndex,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        limits: ServingLimits | None = None,
        registry: CollectorRegistry | None = None,
        check: Check | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.registry = CollectorRegistry() if registry is None else registry
        self.metrics = ServingMetrics(self.registry)
        self._versions = versions
        self._tls = tls
        self._limits = limits or ServingLimits()
        self._clock = SystemClock() if clock is None else clock
        self._check = check
        self._page = MetricsPage(self.registry, clock=self._clock, refresh=self._update_version_gauges)
        self._probe = token_bytes(PROBE_BYTES)
        self._callers = CallerAddresses(self._limits.trusted_proxies)
        self._rates = IpRates(self._limits.rate, clock=self._clock)
        self._health_rates = IpRates(HEALTH_RATE, clock=self._clock)
        self._guard = ConnectionGuard(self._limits.connections, callers=self._callers, refused=self.metrics.refuse)
        self._answers = AnswerBudget(callers=self._callers, refused=self.metrics.refuse)
        raise_descriptor_limit()
        self._guard.fit(connection_room())
        self.sender = RangeSender(timeout=self._limits.timeout, sent=self.metrics.sent.inc)
        self._stopping = False
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Returns the URL of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._middleware])
        app.router.add_get(_PROBE, self._send_probe)
        app.router.add_get(_VERSIONS, self._list)
        app.router.add_get(_MANIFEST, self._send_manifest)
        app.router.add_get(_FILE, self._send_file)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1,
            keepalive_timeout=self._limits.idle.total_seconds(),
            max_line_size=_MOST_FIELD,
            max_field_size=_MOST_FIELD,
            max_headers=_MOST_FIELDS,
        )
        await self._runner.setup()
        if self._runner.server is None:  # for the type checker: `setup` always sets the server
            raise Unavailable("the server did not start", retryable=False)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                gated(self._guard, self._answers, self._runner.server),
                self.host,
                self.port,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.idle.total_seconds() if self._tls else None,
                backlog=1024,
            )
        except OSError as error:
            await self._runner.cleanup()
            raise Unavailable(
                f"can't listen on {self.host}:{self.port}: {error.strerror}",
                hint="if another program uses the port, choose another one, or 0 for any free port",
                retryable=False,
                code="cannot-listen",
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._versions.wake()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # Middleware

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = "(none)" if resource is None else resource.canonical
        status = 499  # for the metrics, if the caller closes the connection before the answer; nginx uses 499, too
        self.metrics.open.inc()
        connection = request.transport
        if connection is not None:
            self._guard.busy(connection)
        try:
            rates = self._health_rates if route in HEALTH_PATHS else self._rates
            response = await self._answer(request, handler, route, rates=rates)
            status = response.status
        finally:
            self.metrics.open.dec()
            if connection is not None:
                self._guard.idle(connection)
            self.metrics.answers.labels(route, str(status)).inc()
        return response

    async def _answer(
        self, request: web.Request, handler: Handler, route: str, *, rates: IpRates
    ) -> web.StreamResponse:
        try:
            self._admit(request, rates)
            if route in _PARAMETERS:
                check_parameters(request.query.keys(), _PARAMETERS[route])
            return await handler(request)
        except web.HTTPException as error:
            response = _problem(NotFound(f"no such path or method: {error.reason}"))
            response.set_status(error.status)
        except (MusterError, TimeoutError, OSError) as error:
            response = _problem(
                error
                if isinstance(error, MusterError)
                else Unavailable("the server could not deliver the data in time")
            )
        return response

    def _admit(self, request: web.Request, rates: IpRates) -> None:
        address = self._callers.of(request.remote, request.headers.getall("X-Forwarded-For", []))
        try:
            rates.admit(address)
        except RateLimited:
            self.metrics.refuse("rate")
            raise

    # Handlers

    async def _send_probe(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._probe, headers={"Cache-Control": "no-store"})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "follow" not in request.query:
            return web.Response(
                text=self._versions.listing().model_dump_json(),
                content_type="application/json",
                headers={"Cache-Control": "no-store"},
            )
        response = await self._begin_stream(request)
        sent = -1
        with _abort_on_error(request):
            while not self._stopping:
                if self._versions.revision != sent:
                    sent = self._versions.revision
                    await self._write(response, self._versions.listing().model_dump_json().encode() + b"\n")
                elif not await _changed_soon(self._versions.next_change()):
                    await self._write(response, b"\n")
            await response.write_eof()
        return response

    async def _send_manifest(self, request: web.Request) -> web.StreamResponse:
        local = self._find(request)
        sequence = _number(request.query.get("from", "0"), 1 << 32, "from")
        response = await self._begin_stream(request)
        with _abort_on_error(request):
            while not self._stopping:
                data, sequence = local.lines_from(sequence)
                if data:
                    await self._write(response, data)
                elif local.manifest.sealed or local.gone:
                    break
                elif not await _changed_soon(local.next_change()):
                    await self._write(response, b"\n")
            await response.write_eof()
        return response

    async def _send_file(self, request: web.Request) -> web.StreamResponse:
        local = self._find(request)
        index = _number(request.match_info["file"], 1 << 16, "file")
        if index >= len(local.manifest.files):
            raise NotFound(f"version {local.manifest.key} has no file {index}")
        state = local.manifest.files[index]
        first, last = _range(request.headers.get("Range", ""), state)
        await self.sender.wait(local, index, first // BLOCK)
        response = web.StreamResponse(
            status=206,
            headers={
                "Content-Range": f"bytes {first}-{last}/{state.announced if state.ended else '*'}",
                "Content-Type": "application/octet-stream",
                "Cache-Control": "no-store",
                "Accept-Ranges": "bytes",
            },
        )
        response.content_length = last - first + 1
        await response.prepare(request)
        with _abort_on_error(request):
            await self.sender.send(request, response, local, file=index, span=(first, last))
            await response.write_eof()
        return response

    async def _healthz(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok", "service": "shardcast"})

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        try:
            if self._stopping:
                raise Unavailable("the server is stopping")
            if self._check is not None:
                await self._check()
        except MusterError as error:
            return web.json_response({"ready": False, "why": error.detail}, status=503)
        return web.json_response({"ready": True})

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._page.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    # Helpers

    def _find(self, request: web.Request) -> LocalVersion:
        version = _number(request.match_info["version"], MOST_VERSION, "version")
        attempt = _number(request.match_info["attempt"], MOST_ATTEMPT, "attempt")
        return self._versions.find(VersionKey(version, attempt))

    async def _begin_stream(self, request: web.Request) -> web.StreamResponse:
        # Without the header `X-Accel-Buffering`, nginx would buffer the stream, and readers would get its lines late.
        headers = {"Content-Type": _NDJSON, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        return response

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        await self._in_time(response.write(data), self._limits.timeout)

    async def _in_time(self, work: Awaitable[None], limit: timedelta) -> None:
        """Awaits a write within a time limit.

        Without the limit, a reader that takes no data could occupy a connection for ever.
        """
        async with asyncio.timeout(limit.total_seconds()):
            await work

    def _update_version_gauges(self) -> None:
        listed = self._versions.listing().versions
        self.metrics.held.labels("sealed").set(sum(each.sealed for each in listed))
        self.metrics.held.labels("growing").set(sum(not each.sealed for each in listed))
        if listed and self._versions.newest_since is not None:
            self.metrics.newest.set(listed[0].version)
            self.metrics.age.set((self._clock.now() - self._versions.newest_since).total_seconds())


@contextmanager
def _abort_on_error(request: web.Request) -> Iterator[None]:
    """Aborts the connection on an error.

    An error response is no longer possible, because the headers were sent.
    """
    try:
        yield
    except (MusterError, TimeoutError, OSError):
        if request.transport is not None:
            request.transport.abort()
        raise


async def _changed_soon(change: Awaitable[None]) -> bool:
    """Waits for a change, at most for `KEEP_ALIVE`; returns whether a change came."""
    try:
        async with asyncio.timeout(KEEP_ALIVE.total_seconds()):
            await change
    except TimeoutError:
        return False
    return True


def _problem(error: MusterError) -> web.StreamResponse:
    problem = problem_of(error)
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, RateLimited):
        headers["Retry-After"] = str(math.ceil(error.retry_after.total_seconds()))
    body = problem.model_dump_json(exclude_none=True).encode()
    return web.Response(body=body, status=problem.status, content_type=MEDIA_TYPE, headers=headers)


def _number(text: str, most: int, name: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise InvalidInput(f"{name} must be a whole number up to {most}, not {text[:20]!r}")
    return int(text)


def _range(header: str, state: FileProgress) -> tuple[int, int]:
    """Returns the offsets of the first and last requested byte.

    Raises:
        InvalidInput: The header is not a single range, or the range is too large or not within the announced bytes.
    """
    match = _RANGE.fullmatch(header)
    if match is None:
        raise InvalidInput(
            "the request has no header Range with a single range of bytes",
            hint="send a header such as Range: bytes=0-1048575",
            code="no-range",
        )
    first, last = int(match[1]), int(match[2])
    if not first <= last < state.announced or last - first >= MOST_RANGE:
        raise InvalidInput(
            f"{state.path} has {state.announced} bytes so far, and a range may have at most {MOST_RANGE}",
            code="range-not-satisfiable",
        )
    return first, last
