"""Serves an app on a real port in a thread, for tests that call it from outside its event loop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


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
