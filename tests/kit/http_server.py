"""Serves an app on a real port in a thread, for tests that call it from outside its event loop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException

import uvicorn
from fastapi import FastAPI


def get_status(port: int, path: str) -> int:
    """Returns the status of a GET on loopback, or 0 if there is no answer.

    For polls: a client of httpx takes 0.03 CPU seconds to load certificate authorities.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()


@contextmanager
def served(app: FastAPI, *, listener: socket.socket | None = None) -> Iterator[str]:
    """The URL of the app, which runs in a thread with an event loop of its own.

    Args:
        app: The app.
        listener: Bound already, for an app that has to know its own URL.
    """
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = listener or config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 90
        while not server.started:
            assert time.monotonic() < until, "the service did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        app.state.stopping.set()
        server.should_exit = True
        thread.join(60)
