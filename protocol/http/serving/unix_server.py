"""HTTP server on a unix socket inside a running program.

The worker uses it for the task's bridge and for its control interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from protocol.errors import Unavailable
from protocol.http.rates import CallerAddresses
from protocol.http.serving.connections import ConnectionLimits
from protocol.http.serving.http import BoundedServer, Serving
from protocol.runtime.clock import SystemClock

MOST_CONNECTIONS = 64
"""Maximum number of connections. Further ones are closed, so that a task can't exhaust the worker's file descriptors.
"""

_LIMITS = ConnectionLimits(connections=MOST_CONNECTIONS, per_address=MOST_CONNECTIONS)


class UnixServer:
    """Serves an application on a unix socket between `start` and `stop`.

    The server does not touch signal handlers; the program handles signals itself.

    Args:
        app: Application to serve.
        path: Path of the socket. A file at this path is replaced.
        mode: Permissions of the socket file.
    """

    def __init__(self, app: FastAPI, path: Path, *, mode: int) -> None:
        self._app = app
        self._path = path
        self._mode = mode
        self._server: uvicorn.Server | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the server; returns when it accepts connections.

        Raises:
            Unavailable: The application did not start.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short_path(self._path) as short:
            listener.bind(short)
        self._path.chmod(self._mode)
        self._server = _QuietServer(self._app)
        self._running = asyncio.create_task(self._server.serve(sockets=[listener]), name=f"serve {self._path.name}")
        while not self._server.started:
            if self._running.done():
                raise Unavailable(
                    f"the server at {self._path} did not start",
                    hint="see the log for the cause",
                    retryable=False,
                    code="start-failed",
                )
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Refuses new connections, waits for open requests, and removes the socket."""
        if self._server is not None and self._running is not None:
            self._server.should_exit = True
            await self._running
        self._path.unlink(missing_ok=True)


class _QuietServer(BoundedServer):
    """Bounded server for a few connections that installs no signal handlers."""

    def __init__(self, app: FastAPI) -> None:
        serving = Serving.of(_LIMITS, callers=CallerAddresses(), clock=SystemClock(), refused=lambda _: None)
        super().__init__(app, serving=serving, drain_s=2, backlog=64)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yields an alias of a socket's path that is short enough for the kernel.

    The kernel allows 107 bytes, but state directories may be deep. The alias leads through `/proc/self/fd`.
    """
    if len(os.fsencode(path)) <= 100:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
