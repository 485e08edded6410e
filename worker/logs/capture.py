"""Copies the output of containers into the log store."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

from protocol.errors import MusterError
from protocol.runtime.logs import get_logger
from worker.logs.store import LogStore
from worker.runtime.interface import OutputLine, Runtime

FINISH_TIMEOUT = timedelta(seconds=5)
"""Maximum time to wait for the last output of an ended container."""

_BATCH = 500
"""Maximum number of lines that are collected before they are stored."""
_log = get_logger(__name__)


class OutputCollector:
    """Follows the output of each container in a separate asyncio task.

    Args:
        runtime: Runtime of the containers.
        ended: Event that is set when a container's output ends, usually because the container has ended.
    """

    def __init__(self, runtime: Runtime, ended: asyncio.Event) -> None:
        self._runtime = runtime
        self._ended = ended
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._complete: set[str] = set()

    def follow(self, name: str, store: LogStore) -> None:
        """Starts to follow a container, unless it is followed already or its output is complete."""
        follower = self._followers.get(name)
        if name not in self._complete and (follower is None or follower.done()):
            self._followers[name] = asyncio.create_task(self._follow(name, store), name=f"output of {name}")

    async def finish(self, name: str) -> None:
        """Waits until all output of an ended container is stored.

        It waits at most `FINISH_TIMEOUT`.
        """
        follower = self._followers.pop(name, None)
        if follower is not None:
            await asyncio.wait({follower}, timeout=FINISH_TIMEOUT.total_seconds())
            await _cancel(follower)
        self._complete.discard(name)

    async def close(self) -> None:
        """Stops following all containers.

        A later `follow` continues after the last stored line.
        """
        followers, self._followers = list(self._followers.values()), {}
        for follower in followers:
            await _cancel(follower)

    async def _follow(self, name: str, store: LogStore) -> None:
        pending: list[OutputLine] = []
        flusher = asyncio.create_task(self._flush_often(name, store, pending))
        try:
            async for line in self._runtime.output(name, after_ns=store.position(name)):
                pending.append(line)
                if len(pending) >= _BATCH:
                    _flush(name, store, pending)
                    await asyncio.sleep(0)
            self._complete.add(name)
        except MusterError as error:
            _log.debug("output-broke-off", container=name, detail=error.detail)
        finally:
            flusher.cancel()
            _flush(name, store, pending)
            self._ended.set()

    async def _flush_often(self, name: str, store: LogStore, pending: list[OutputLine]) -> None:
        while True:
            await asyncio.sleep(0.1)
            _flush(name, store, pending)


def _flush(name: str, store: LogStore, pending: list[OutputLine]) -> None:
    if pending:
        store.append(name, pending)
        pending.clear()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
