"""HTTP server on a unix socket inside a running program.

The worker uses it for the task's bridge and for its control interface.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from fastapi import FastAPI

from protocol.http.serving.embedded_server import EmbeddedServer


class UnixServer(EmbeddedServer):
    """Serves an application on a unix socket between `start` and `stop`.

    Args:
        app: Application to serve.
        path: Path of the socket. A file at this path is replaced.
        mode: Permissions of the socket file.
    """

    def __init__(self, app: FastAPI, path: Path, *, mode: int) -> None:
        super().__init__(app)
        self._path = path
        self._mode = mode

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
        await self.start_on(listener, name=str(self._path))

    async def stop(self) -> None:
        """Refuses new connections, waits for open requests, and removes the socket."""
        await super().stop()
        self._path.unlink(missing_ok=True)


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
