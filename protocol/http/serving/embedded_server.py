"""HTTP server inside a running program, which handles signals itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from protocol.errors import Unavailable
from protocol.http.rates import CallerAddresses
from protocol.http.serving.connections import ConnectionLimits
from protocol.http.serving.http import BoundedServer, Serving
from protocol.runtime.clock import SystemClock

MOST_CONNECTIONS = 64
"""Maximum number of connections. Further ones are closed, so that a client can't exhaust the program's descriptors."""

_LIMITS = ConnectionLimits(connections=MOST_CONNECTIONS, per_address=MOST_CONNECTIONS)


class EmbeddedServer:
    """Serves an application on a listening socket between `start_on` and `stop`.

    The server does not touch signal handlers; the program handles signals itself.

    Args:
        app: Application to serve.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._server: uvicorn.Server | None = None
        self._running: asyncio.Task[None] | None = None

    async def start_on(self, listener: socket.socket, *, name: str) -> None:
        """Starts the server; returns when it accepts connections.

        Args:
            listener: A bound socket, which the server closes.
            name: Name of the place for errors, such as a path or an address.

        Raises:
            Unavailable: The application did not start.
        """
        self._server = _QuietServer(self._app)
        self._running = asyncio.create_task(self._server.serve(sockets=[listener]), name=f"serve {name}")
        while not self._server.started:
            if self._running.done():
                raise Unavailable(
                    f"the server at {name} did not start",
                    hint="see the log for the cause",
                    retryable=False,
                    code="start-failed",
                )
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Refuses new connections and waits for open requests."""
        if self._server is not None and self._running is not None:
            self._server.should_exit = True
            await self._running


class _QuietServer(BoundedServer):
    """Bounded server for a few connections that installs no signal handlers."""

    def __init__(self, app: FastAPI) -> None:
        serving = Serving.of(_LIMITS, callers=CallerAddresses(), clock=SystemClock(), refused=lambda _: None)
        super().__init__(app, serving=serving, drain_s=2, backlog=64)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
