"""Builds and runs the HTTP application of a service.

It has health, readiness, metrics, OpenAPI, problem responses, limits and a graceful shutdown.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge
from starlette.routing import BaseRoute

from protocol.errors import MusterError, Unavailable
from protocol.http.deprecation import Deprecation
from protocol.http.openapi import complete_openapi, operation_id
from protocol.http.parameters import declared_parameters_only
from protocol.http.rates import CallerAddresses, IpRates
from protocol.http.serving.connections import ConnectionLimits
from protocol.http.serving.descriptors import connection_room, raise_descriptor_limit
from protocol.http.serving.docs_page import add_docs
from protocol.http.serving.http import BoundedServer, Serving
from protocol.http.serving.metrics_page import MetricsPage
from protocol.http.serving.middleware import HttpLimits, HttpMetrics, RequestMiddleware
from protocol.http.serving.problem_answers import ProblemForm, install_problem_answers, problem_json
from protocol.http.verification import DEFAULT_BODY_LIMIT, FastRoute
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import get_logger
from protocol.runtime.loops import BackgroundLoops
from protocol.versions import SPOKEN, VersionRange

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

Check = Callable[[], Awaitable[None]]
"""Readiness check: returns if a dependency is available, and raises an error otherwise."""

CHECK_TIMEOUT = timedelta(seconds=2)
"""Time limit of one readiness check."""
DRAIN = timedelta(seconds=20)
"""Time limit of open requests at shutdown, below the 30 s after which Kubernetes kills a process."""

BACKLOG = 2048
"""Maximum number of connections that wait to be accepted. The kernel's own limit may be lower."""

_log = get_logger(__name__)

_built_routes: dict[tuple[int, ...], tuple[tuple[APIRouter, ...], Sequence[BaseRoute]]] = {}
"""Routes of `add_routes` by the ids of their routers; the routers are kept, so that no other one gets their ids."""


def create_service(
    name: str,
    *,
    version: str,
    description: str = "",
    lifespan: Lifespan | None = None,
    checks: Mapping[str, Check] | None = None,
    loops: BackgroundLoops | None = None,
    clock: Clock | None = None,
    body_limit: int = DEFAULT_BODY_LIMIT,
    body_limits: Sequence[tuple[str, int]] = (),
    ip_rates: IpRates | None = None,
    callers: CallerAddresses | None = None,
    connections: ConnectionLimits | None = None,
    fast_routes: Mapping[tuple[str, str], FastRoute] | None = None,
    versions: VersionRange = SPOKEN,
    deprecations: Sequence[Deprecation] = (),
    tags: Sequence[Mapping[str, Any]] = (),
    form: ProblemForm = problem_json,
) -> FastAPI:
    """Builds the application to which a service adds its routes.

    The application has the routes `/healthz` (the process runs), `/readyz` (the service can serve), `/metrics`
    (Prometheus) and `/docs`. A service registers its own metrics in `app.state.registry`. The event
    `app.state.stopping` is set at shutdown; long polls and streams watch it and end early.

    Args:
        name: Name of the service in OpenAPI, logs and metrics.
        version: Version of this release.
        description: Description in OpenAPI.
        lifespan: Context that opens and closes the service's resources. The loops run inside it.
        checks: Readiness checks of `/readyz` by name. Each has a time limit of `CHECK_TIMEOUT`.
        loops: Background loops. If one is stalled, the service is not ready.
        clock: Clock of the service; the system's by default.
        body_limit: Maximum size of a request body, in bytes.
        body_limits: Other maximum sizes by path prefix. Routes below these prefixes stream their bodies.
        ip_rates: Rate limits per IP; none by default.
        callers: Trusted proxies, by which a caller's IP is found; none by default.
        connections: Maximum numbers of open connections. The limit of file descriptors may lower them.
        fast_routes: Routes under heavy load by method and path, which the middleware calls without the web framework.
        versions: Protocol versions that the service supports.
        deprecations: Routes and protocol versions whose end responses announce; the first match applies.
        tags: Descriptions of the tags in OpenAPI.
        form: Form of error responses, for a service that follows the API of another product.
    """
    clock = SystemClock() if clock is None else clock
    registry = CollectorRegistry()
    checks = dict(checks or {})
    if loops is not None:
        checks["loops"] = loops.check

    @asynccontextmanager
    async def whole_life(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(lifespan(app) if lifespan is not None else _nothing())
                await stack.enter_async_context(loops or _nothing())
            except MusterError as error:
                app.state.start_error = error
                raise
            yield

    app = FastAPI(
        title=f"Muster {name}",
        version=version,
        description=description,
        lifespan=whole_life,
        dependencies=[Depends(declared_parameters_only)],
        openapi_tags=[dict(tag) for tag in tags],
        generate_unique_id_function=operation_id,
        openapi_url=None,
        redoc_url=None,
    )
    app.state.name = name
    app.state.clock = clock
    app.state.registry = registry
    app.state.stopping = asyncio.Event()
    app.state.start_error = None
    callers = callers or CallerAddresses()
    metrics = HttpMetrics(registry)
    app.state.serving = Serving.of(
        connections or ConnectionLimits(),
        callers=callers,
        clock=clock,
        refused=metrics.refuse,
        streams=tuple(beginning for beginning, _ in body_limits),
    )
    app.add_middleware(
        RequestMiddleware,
        settings=HttpLimits(
            body_limit=body_limit,
            body_limits=tuple(body_limits),
            ip_rates=ip_rates,
            callers=callers,
            fast_routes=dict(fast_routes or {}),
            spoken=versions,
            deprecations=tuple(deprecations),
            form=form,
        ),
        metrics=metrics,
        clock=clock,
    )
    install_problem_answers(app, form=form)
    _add_health(app, checks, registry)
    complete_openapi(app, with_problems=form is problem_json)
    add_docs(app)
    return app


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Adds the routes of a service's routers to an application that `create_service` built.

    Unlike `FastAPI.include_router`, it builds the routes once for all applications of the process: that takes longer
    than the rest of the application. Routes have no state; they find their application in the request.
    """
    key = tuple(map(id, routers))
    if key not in _built_routes:
        combined = APIRouter(dependencies=[Depends(declared_parameters_only)], generate_unique_id_function=operation_id)
        for router in routers:
            combined.include_router(router)
        _built_routes[key] = (routers, combined.routes)
    app.router.routes.extend(_built_routes[key][1])


async def serve(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    drain: timedelta = DRAIN,
    on_bound: Callable[[int], None] | None = None,
) -> None:
    """Serves the application until SIGTERM or SIGINT.

    After a signal the service reports that it is not ready, refuses new connections, waits for open requests and exits.
    At the start it raises the soft limit of open files, which is often 1024, to the hard limit.

    Args:
        app: Application built by `create_service`.
        host: Address of this machine to listen on.
        port: Port to listen on; 0 for any free port.
        drain: Maximum time that open requests may take to end after a signal.
        on_bound: Function that is called with the port when it is bound.

    Raises:
        Unavailable: The port can't be bound, or the application did not start.
        MusterError: The error with which the lifespan refused to start.
    """
    listener = bind(host, port)
    bound: int = listener.getsockname()[1]
    _log.info("listening", service=getattr(app.state, "name", app.title), host=host, port=bound)
    if on_bound is not None:
        on_bound(bound)
    _quiet_garbage_collection()
    raise_descriptor_limit()
    app.state.serving.guard.fit(connection_room())
    server = _Server(app, drain=drain)
    with suppress(SystemExit):  # uvicorn's way to report that the application did not start
        await server.serve(sockets=[listener])
    if not server.started:
        raise app.state.start_error or Unavailable(
            "the service did not start", hint="see the log for the cause", retryable=False, code="start-failed"
        )


def run_service(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    drain: timedelta = DRAIN,
    on_bound: Callable[[int], None] | None = None,
) -> None:
    """Runs `serve` in a new event loop, for the command of a service.

    The loop is uvloop's if that is installed.
    """
    config = uvicorn.Config(
        app, loop="auto", log_config=None
    )  # otherwise uvicorn installs its own plain-text log handler
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve(app, host=host, port=port, drain=drain, on_bound=on_bound))


class _Server(BoundedServer):
    """Bounded server that announces a stop to readiness checks and streams at once.

    It exits with status 0 after a signal.
    """

    def __init__(self, app: FastAPI, *, drain: timedelta) -> None:
        drain_s = max(1, round(drain.total_seconds()))
        super().__init__(app, serving=app.state.serving, drain_s=drain_s, backlog=BACKLOG)
        self._stopping: asyncio.Event = app.state.stopping
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on an address of this machine.

    Args:
        host: Address or name to listen on.
        port: Port to listen on; 0 for any free port.

    Raises:
        Unavailable: The address can't be bound.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(
            BACKLOG
        )  # listens before the service has started, because clients that know the port may connect at once
    except OSError as error:
        raise Unavailable(
            f"can't listen on {host}:{port}: {error.strerror}",
            hint="another program may use the port; choose another one, or 0 for any free port",
            retryable=False,
            code="cannot-listen",
        ) from error
    return listener


def _quiet_garbage_collection() -> None:
    """Excludes loaded objects from garbage collection.

    This halves the 99th percentile of latency at thousands of requests per second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


def _add_health(app: FastAPI, checks: Mapping[str, Check], registry: CollectorRegistry) -> None:
    ready = Gauge("muster_ready", "1 if the service can serve", registry=registry)
    page = MetricsPage(registry, clock=app.state.clock)

    @app.get("/healthz", tags=["health"], summary="The process runs")
    async def check_health() -> dict[str, str]:
        """Return the service's name and release while the process runs."""
        return {"status": "ok", "service": app.state.name, "version": app.version}

    asking: asyncio.Task[list[str]] | None = None

    async def ask_all() -> list[str]:
        return await asyncio.gather(*(_ask(check) for check in checks.values()))

    @app.get("/readyz", tags=["health"], summary="The service can serve")
    async def check_readiness() -> JSONResponse:
        """Return the result of each check; the status is 503 if one has failed."""
        nonlocal asking
        if app.state.stopping.is_set():
            results = {"stopping": "the service is stopping"}
        else:
            # Concurrent callers share one round of checks, so that many probes don't load Redis and the chain.
            if asking is None or asking.done():
                asking = asyncio.create_task(ask_all())
            results = dict(zip(checks, await asyncio.shield(asking), strict=True))
        is_ready = all(answer == "ok" for answer in results.values())
        ready.set(int(is_ready))
        return JSONResponse({"ready": is_ready, "checks": results}, 200 if is_ready else 503)

    @app.get("/metrics", tags=["health"], summary="Prometheus metrics", response_class=Response)
    async def get_metrics(_request: Request) -> Response:
        """Return the service's metrics in Prometheus' text format."""
        return Response(page.text(), media_type=CONTENT_TYPE_LATEST)


async def _ask(check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT.total_seconds()):
            await check()
    except MusterError as error:
        return error.detail
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT.total_seconds():.0f} s"
    except Exception as error:  # noqa: BLE001 - a crash counts as a failed check; the log has the traceback
        _log.warning("readiness-check-crashed", exc_info=error)
        return "the check crashed; see the log"
    return "ok"


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield
