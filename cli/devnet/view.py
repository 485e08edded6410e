"""Devnet display: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.devnet.dashboard import Dashboard
from cli.devnet.live_view import news, picture
from cli.devnet.supervisor import ProcessState, SupervisedProcess
from protocol.runtime.clock import Clock, SystemClock

_RECENT = 8
_TALL = 38
"""Lines of a terminal that hold everything; a lower one shows less."""
_COLOURS = {
    ProcessState.STARTING: "yellow",
    ProcessState.HEALTHY: "green",
    ProcessState.RESTARTING: "yellow",
    ProcessState.STOPPING: "yellow",
    ProcessState.STOPPED: "dim",
    ProcessState.DONE: "green",
    ProcessState.FAILED: "red",
}


class View(Protocol):
    """Shows a network while it runs."""

    def event(self, text: str) -> None:
        """Shows an event."""
        ...

    def facts(self, facts: Mapping[str, str]) -> None:
        """Shows the present state, which replaces the previous one."""
        ...

    def processes(self, processes: list[SupervisedProcess]) -> None:
        """The processes now."""
        ...

    def dashboard(self, dashboard: Dashboard) -> None:
        """Shows the state of the run."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainView:
    """One line per event; facts are said once each time that they change."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic()
        self._said: dict[str, str] = {}
        self._dashboard: Dashboard | None = None

    def event(self, text: str) -> None:
        """Prints the event with the seconds since the start."""
        sys.stdout.write(f"[{self._clock.monotonic() - self._began:6.1f} s] {text}\n")
        sys.stdout.flush()

    def facts(self, facts: Mapping[str, str]) -> None:
        """Prints the facts that are new; numbers that always move are left to the live view."""
        for name, value in facts.items():
            if name not in self._said:
                self.event(f"{name}: {value}")
            self._said[name] = value

    def processes(self, processes: list[SupervisedProcess]) -> None:
        """Processes are told by their events."""

    def dashboard(self, dashboard: Dashboard) -> None:
        """Prints each learned step, each evaluation, and each node that is judged forged or evicted."""
        for line in news(self._dashboard, dashboard):
            self.event(line)
        self._dashboard = dashboard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LiveView:
    """Redraws one screen four times a second."""

    def __init__(self, *, console: Console | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic()
        self._events: deque[str] = deque(maxlen=_RECENT)
        self._facts: Mapping[str, str] = {}
        self._processes: list[SupervisedProcess] = []
        self._dashboard: Dashboard | None = None
        self._console = console or Console()
        self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4, transient=True)

    def event(self, text: str) -> None:
        """Adds the event to the recent ones."""
        self._events.append(f"{self._clock.monotonic() - self._began:6.1f} s  {text}")

    def facts(self, facts: Mapping[str, str]) -> None:
        """Takes the facts of the header."""
        self._facts = dict(facts)

    def processes(self, processes: list[SupervisedProcess]) -> None:
        """Takes the rows of the table."""
        self._processes = processes

    def dashboard(self, dashboard: Dashboard) -> None:
        """Takes how the run stands."""
        for line in news(self._dashboard, dashboard):
            if not line.startswith("step "):  # the picture shows each of them
                self.event(line)
        self._dashboard = dashboard

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def render(self) -> RenderableType:
        """The whole screen."""
        header = Table.grid(padding=(0, 2))
        header.add_column(style="dim", no_wrap=True)
        header.add_column(overflow="fold")
        for name, value in self._facts.items():
            header.add_row(escape(name), escape(value))
        low = self._console.size.height < _TALL
        recent = list(self._events)[-3:] if low else self._events
        events = Text("\n".join(recent), style="dim", no_wrap=True, overflow="ellipsis")
        shown: list[RenderableType] = [] if low and self._dashboard is not None else [header, ""]
        if self._dashboard is not None:
            shown += [picture(self._dashboard), ""]
        shown += [self._table(), "", events]
        title = f"muster devnet · {self._clock.monotonic() - self._began:.0f} s · Ctrl-C stops everything"
        return Panel(Group(*shown), title=title, title_align="left", border_style="cyan")

    def _table(self) -> RenderableType:
        """Every process with its state: in columns, because there are many and most are well."""
        cells = [
            Text.assemble((f"{process.name} ", ""), (self._state(process), _COLOURS[process.state]))
            for process in self._processes
        ]
        return Columns(cells, padding=(0, 2))

    def _state(self, process: SupervisedProcess) -> str:
        again = f" (restarted {process.restarts})" if process.restarts else ""
        return f"{process.state.value}{again}"


def make_view(*, plain: bool) -> View:
    """A live view on a terminal, unless plain lines were asked for."""
    return PlainView() if plain or not sys.stdout.isatty() else LiveView()
