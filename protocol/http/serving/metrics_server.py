"""Serves a program's metrics to Prometheus; for programs that have no HTTP service of their own."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from protocol.http.serving.embedded_server import EmbeddedServer
from protocol.http.serving.metrics_page import MetricsPage
from protocol.http.serving.service import bind
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger

_log = get_logger(__name__)


class MetricsServer(EmbeddedServer):
    """Async context manager that serves `/metrics` of a registry, and nothing else.

    Args:
        registry: Registry of the metrics. Its collectors run in the event loop, at most once a second.
        host: Address of this machine to listen on.
        port: Port to listen on; 0 for any free port.
        clock: Clock that measures the age of the rendered text.
    """

    def __init__(self, registry: CollectorRegistry, *, host: str, port: int, clock: Clock) -> None:
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        page = MetricsPage(registry, clock=clock)

        @app.get("/metrics")
        async def get_metrics() -> Response:
            return Response(page.text(), media_type=CONTENT_TYPE_LATEST)

        super().__init__(app)
        self._host = host
        self.port = port
        """The port; after the start, the bound one."""

    async def __aenter__(self) -> Self:
        """Binds the port and starts the server.

        Raises:
            Unavailable: The port can't be bound.
        """
        listener = bind(self._host, self.port)
        self.port = listener.getsockname()[1]
        await self.start_on(listener, name=f"{self._host}:{self.port}")
        _log.info("metrics", host=self._host, port=self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the server."""
        await self.stop()
