"""The output of tasks: of the present assignment as it comes, of former ones as long as it is kept."""

from __future__ import annotations

import asyncio

from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from worker.logs.capture import OutputCollector
from worker.logs.store import LogStore, open_kept, remove_old_logs
from worker.runtime.interface import Container, ContainerStatus, Runtime
from worker.state import StateDirectory


class TaskLogs:
    """Collects what containers write.

    Args:
        runtime: Where the output comes from.
        state: The worker's directory.
        clock: When the worker's own notes were made.
        ended: Set when a container's output has ended.
    """

    def __init__(self, runtime: Runtime, state: StateDirectory, *, clock: Clock, ended: asyncio.Event) -> None:
        self._kept = state.logs
        self._clock = clock
        self._collector = OutputCollector(runtime, ended)
        self.present: LogStore | None = None
        """Of the present assignment."""
        self._present_of = ""
        self._past: tuple[str, LogStore] | None = None

    def open(self, assignment_id: str) -> None:
        """Makes an assignment the present one."""
        if self._present_of == assignment_id and self.present is not None:
            return
        if self.present is not None:
            self.present.close()
        self.present = LogStore(self._kept / assignment_id)
        self._present_of = assignment_id
        remove_old_logs(self._kept, keep=assignment_id)

    def of(self, assignment_id: str) -> LogStore | None:
        """The log of an assignment; None if it is not kept."""
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
        """Writes a line of the worker's own between those of the task."""
        if self.present is not None:
            self.present.note(text, now_ms=unix_ms(self._clock.now()))

    def follow(self, container: Container) -> None:
        """Begins to collect what a container of the present assignment writes."""
        if self.present is None or container.assignment_id != self._present_of:
            return
        if container.status is not ContainerStatus.CREATED:
            self._collector.follow(container.name, self.present)

    async def finish(self, name: str) -> None:
        """Returns when everything that an ended container wrote is kept, or it takes too long."""
        await self._collector.finish(name)

    async def quote(self, name: str) -> str:
        """The last lines of a container of the present assignment that has ended."""
        await self.finish(name)
        return "" if self.present is None else self.present.quote()

    async def stop(self) -> None:
        """Follows nothing any more; it can be taken up again where it was left."""
        await self._collector.close()

    def close(self) -> None:
        """Lets go of the files."""
        self._close_past()
        if self.present is not None:
            self.present.close()

    def _close_past(self) -> None:
        if self._past is not None:
            self._past[1].close()
            self._past = None
