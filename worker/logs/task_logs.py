"""Logs of the current assignment, and of earlier ones that are still stored."""

from __future__ import annotations

import asyncio

from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from worker.logs.capture import OutputCollector
from worker.logs.store import LogStore, open_kept, remove_old_logs
from worker.runtime.interface import Container, ContainerStatus, Runtime
from worker.state import StateDirectory


class TaskLogs:
    """Collects the output of containers and opens the log stores of assignments.

    Args:
        runtime: Runtime of the containers.
        state: The worker's state directory.
        clock: Clock that gives the timestamps of the worker's own notes.
        ended: Event that is set when a container's output ends.
    """

    def __init__(self, runtime: Runtime, state: StateDirectory, *, clock: Clock, ended: asyncio.Event) -> None:
        self._kept = state.logs
        self._clock = clock
        self._collector = OutputCollector(runtime, ended)
        self.present: LogStore | None = None
        """Log store of the current assignment; None if there is none."""
        self._present_of = ""
        self._past: tuple[str, LogStore] | None = None

    def open(self, assignment_id: str) -> None:
        """Makes an assignment the current one and opens its log store."""
        if self._present_of == assignment_id and self.present is not None:
            return
        if self.present is not None:
            self.present.close()
        self.present = LogStore(self._kept / assignment_id)
        self._present_of = assignment_id
        remove_old_logs(self._kept, keep=assignment_id)

    def of(self, assignment_id: str) -> LogStore | None:
        """Returns the log store of an assignment; None if it is not stored."""
        if assignment_id == self._present_of:
            return self.present
        if self._past is not None and self._past[0] == assignment_id:
            return self._past[1]
        kept = open_kept(self._kept, assignment_id)
        if kept is not None:
            self._close_past()
            self._past = (assignment_id, kept)
        return kept

    def note(self, text: str) -> None:
        """Adds a note of the worker to the current log."""
        if self.present is not None:
            self.present.note(text, now_ms=unix_ms(self._clock.now()))

    def follow(self, container: Container) -> None:
        """Starts to collect the output of a container of the current assignment."""
        if self.present is None or container.assignment_id != self._present_of:
            return
        if container.status is not ContainerStatus.CREATED:
            self._collector.follow(container.name, self.present)

    async def finish(self, name: str) -> None:
        """Waits until all output of an ended container is stored, for a limited time."""
        await self._collector.finish(name)

    async def quote(self, name: str) -> str:
        """Returns the last lines of an ended container, for the report of its failure."""
        await self.finish(name)
        return "" if self.present is None else self.present.quote()

    async def stop(self) -> None:
        """Stops following output.

        A later `follow` continues after the last stored line.
        """
        await self._collector.close()

    def close(self) -> None:
        """Closes the open log files."""
        self._close_past()
        if self.present is not None:
            self.present.close()

    def _close_past(self) -> None:
        if self._past is not None:
            self._past[1].close()
            self._past = None
