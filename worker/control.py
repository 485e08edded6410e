"""Control interface of a running daemon: HTTP on a unix socket.

Only the worker's own user can open the socket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import httpx
from fastapi import FastAPI, Query

from protocol import __version__
from protocol.errors import NotFound, Unavailable
from protocol.http.problems import error_of_answer
from protocol.http.serving.service import create_service
from protocol.http.serving.unix_server import short_path
from protocol.http.trust import no_authorities
from protocol.runtime.threads import run_in_thread
from protocol.wire.base import Identifier, WireModel, parse_answer
from protocol.wire.logs import LogLine
from worker.delivery.queue.store import QueueStore
from worker.logs.store import LogStore
from worker.situation import WorkerStatus
from worker.state import StateDirectory


class LogPage(WireModel):
    """A page of log lines, and the sequence number of the next line."""

    assignment_id: str
    lines: tuple[LogLine, ...]
    next_sequence: int


def create_control(
    *,
    status: Callable[[], WorkerStatus],
    logs: Callable[[], LogStore | None],
    queue: QueueStore,
    drain: Callable[[bool], None],
    leave: Callable[[], Awaitable[None]],
    resume: Callable[[], None],
) -> FastAPI:
    """Builds the HTTP API behind `muster worker status|logs|drain|resume|leave|retry`.

    Args:
        status: Function that returns the daemon's status.
        logs: Function that returns the log store of the current task; None if no task has run yet.
        queue: The delivery queue, whose parked items can be retried.
        drain: Function that starts or ends draining.
        leave: Function that stops the task, leaves the pool and ends the daemon.
        resume: Function that allows leasing again after leasing stopped because work was not paid.
    """
    app = create_service("worker", version=__version__)

    @app.get("/v1/status")
    async def show() -> WorkerStatus:
        """Returns the daemon's status."""
        return await run_in_thread(status)

    @app.get("/v1/logs")
    async def read(
        since: Annotated[int | None, Query(ge=0)] = None, tail: Annotated[int, Query(ge=0, le=5000)] = 100
    ) -> LogPage:
        """Returns output of the current task.

        These are the lines from number `since` on, or else the last `tail` lines.
        """
        store = logs()
        if store is None:
            raise NotFound("this worker has run no task yet", hint="`muster worker status` shows why")
        lines = await run_in_thread(store.tail, tail) if since is None else await run_in_thread(store.read, since)
        following = lines[-1].sequence + 1 if lines else (store.next_sequence if since is None else since)
        return LogPage(assignment_id="", lines=tuple(lines), next_sequence=following)

    @app.post("/v1/drain", status_code=204)
    async def begin() -> None:
        """Starts draining."""
        drain(True)

    @app.post("/v1/resume", status_code=204)
    async def end() -> None:
        """Ends draining."""
        drain(False)

    @app.post("/v1/lease-again", status_code=204)
    async def lease_again() -> None:
        """Allows leasing again after leasing stopped because work was not paid."""
        resume()

    @app.post("/v1/leave", status_code=202)
    async def go() -> None:
        """Starts to leave the pool.

        The daemon ends afterwards.
        """
        await leave()

    @app.post("/v1/queue/{item_id}/retry", status_code=204)
    async def retry(item_id: Identifier) -> None:
        """Unparks a file, so that its delivery is tried again."""
        await run_in_thread(queue.get, item_id)
        await run_in_thread(queue.unpark, item_id)

    return app


class DaemonControl:
    """Client of the control socket in a worker's state directory.

    Args:
        state: The worker's state directory.
    """

    def __init__(self, state: StateDirectory) -> None:
        self._state = state

    def status(self) -> WorkerStatus:
        """Returns the daemon's status.

        Raises:
            Unavailable: No daemon runs with this state directory.
        """
        return parse_answer(WorkerStatus, self._call("GET", "/v1/status"))

    def logs(self, *, since: int | None = None, tail: int = 100) -> LogPage:
        """Returns output of the current task.

        These are the lines from number `since` on, or else the last `tail` lines.
        """
        query = f"tail={tail}" if since is None else f"since={since}"
        return parse_answer(LogPage, self._call("GET", f"/v1/logs?{query}"))

    def drain(self, *, on: bool) -> None:
        """Starts or ends draining."""
        self._call("POST", "/v1/drain" if on else "/v1/resume")

    def resume(self) -> None:
        """Allows leasing again after leasing stopped because work was not paid."""
        self._call("POST", "/v1/lease-again")

    def leave(self) -> None:
        """Makes the daemon leave the pool and end."""
        self._call("POST", "/v1/leave")

    def retry(self, item_id: str) -> None:
        """Unparks a file, so that its delivery is tried again."""
        self._call("POST", f"/v1/queue/{item_id}/retry")

    def _call(self, method: str, target: str) -> bytes:
        with short_path(self._state.control_socket) as path:
            transport = httpx.HTTPTransport(uds=path, verify=no_authorities())
            try:
                with httpx.Client(transport=transport, base_url="http://worker", timeout=30) as client:
                    answer = client.request(method, target)
            except httpx.TransportError as error:
                raise Unavailable(
                    f"no worker runs with the state directory {self._state.root}",
                    hint="start one with `muster worker run`, or name its state directory with --state",
                    code="worker-not-running",
                ) from error
        if answer.status_code >= 400:
            raise error_of_answer(answer.status_code, answer.headers.get("content-type", ""), answer.content)
        return answer.content
