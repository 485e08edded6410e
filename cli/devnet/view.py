"""Display of a running devnet: a live screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.devnet.report.assembly import accounts, evaluations, learned
from cli.devnet.report.data import Latency, NodeAccount, ReportedAnswer, ReportedEvaluation, ReportedStep, RunRecord
from cli.devnet.report.pipeline import announcements, steps_before
from cli.devnet.report.text import latency, lengths, sparkline
from cli.devnet.report.work import VERDICT_LATENCY, latencies, work_timelines
from cli.devnet.supervisor import ProcessState, SupervisedProcess
from cli.output.printing import shorten
from ledger.amounts import format_amount
from protocol.runtime.clock import Clock, SystemClock

_WIDTH = 40
_RECENT = 8
_SHOWN_ANSWERS = 2
_TALL = 38
"""Terminal height in lines from which the whole display fits; a lower terminal shows less."""
_PROCESS_COLOURS = {
    ProcessState.STARTING: "yellow",
    ProcessState.HEALTHY: "green",
    ProcessState.RESTARTING: "yellow",
    ProcessState.STOPPING: "yellow",
    ProcessState.STOPPED: "dim",
    ProcessState.DONE: "green",
    ProcessState.FAILED: "red",
}
_NODE_COLOURS = {"healthy": "green", "evicted": "red", "banned": "red", "dead": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """State of a run at one moment."""

    wanted_steps: int
    steps: Sequence[ReportedStep]
    evaluations: Sequence[ReportedEvaluation]
    nodes: Sequence[NodeAccount]
    states: Mapping[str, str]
    """State of each node as the orchestrator lists it, by node address."""
    verdict_latency: Latency | None
    versions: int
    broadcast_seconds: float | None
    """Time from the newest version's announcement until every node had it, if known."""
    block: int
    steps_before: int = 0
    """Number of steps that were learned before this start of the devnet."""

    @classmethod
    def of(cls, record: RunRecord, *, wanted_steps: int, states: Mapping[str, str]) -> Dashboard:
        """Returns the present state of a run, computed from the run's record."""
        work, versions = work_timelines(record), announcements(record)
        broadcasts = [
            max(arrived.values()) - at
            for _, (digest, at) in sorted(versions.items())
            if (arrived := record.arrivals.get(digest, {}))
        ]
        return cls(
            wanted_steps=wanted_steps,
            steps=learned(record, began=record.began),
            evaluations=evaluations(record),
            nodes=accounts(record, work),
            states=states,
            verdict_latency=next((one for one in latencies(work) if one.name == VERDICT_LATENCY), None),
            versions=len(versions),
            broadcast_seconds=broadcasts[-1] if broadcasts else None,
            block=max(record.blocks, default=0),
            steps_before=steps_before(record),
        )

    @property
    def seconds_per_step(self) -> float | None:
        """Mean duration of the last ten steps."""
        last = self.steps[-11:]
        return (last[-1].at - last[0].at) / (len(last) - 1) if len(last) > 1 else None

    @property
    def mean_staleness(self) -> float | None:
        """Mean staleness of the groups of the last step."""
        if not self.steps or not self.steps[-1].staleness:
            return None
        counts = self.steps[-1].staleness
        return sum(behind * groups for behind, groups in counts.items()) / max(1, sum(counts.values()))


class View(Protocol):
    """Shows a network while it runs."""

    def event(self, text: str) -> None:
        """Shows an event."""
        ...

    def facts(self, facts: Mapping[str, str]) -> None:
        """Shows facts about the network, by name; replaces the previous ones."""
        ...

    def processes(self, processes: list[SupervisedProcess]) -> None:
        """Shows the state of the processes."""
        ...

    def dashboard(self, dashboard: Dashboard) -> None:
        """Shows the state of the run."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class PlainView:
    """Prints one line per event, and each fact once."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic()
        self._printed: set[str] = set()
        self._dashboard: Dashboard | None = None

    def event(self, text: str) -> None:
        """Prints the event with the seconds since the start."""
        sys.stdout.write(f"[{self._clock.monotonic() - self._began:6.1f} s] {text}\n")
        sys.stdout.flush()

    def facts(self, facts: Mapping[str, str]) -> None:
        """Prints each fact once; only the live view shows later changes of a fact's numbers."""
        for name, value in facts.items():
            if name not in self._printed:
                self.event(f"{name}: {value}")
                self._printed.add(name)

    def processes(self, processes: list[SupervisedProcess]) -> None:
        """Prints nothing, because the supervisor also reports each change as an event."""

    def dashboard(self, dashboard: Dashboard) -> None:
        """Prints each new step and evaluation, and each node's forged files, slashes and eviction."""
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
        """Adds the event to the recent events."""
        self._events.append(f"{self._clock.monotonic() - self._began:6.1f} s  {text}")

    def facts(self, facts: Mapping[str, str]) -> None:
        """Sets the facts of the header."""
        self._facts = dict(facts)

    def processes(self, processes: list[SupervisedProcess]) -> None:
        """Sets the processes that the screen lists."""
        self._processes = processes

    def dashboard(self, dashboard: Dashboard) -> None:
        """Sets the shown state of the run, and adds the changes in it to the recent events."""
        for line in news(self._dashboard, dashboard):
            if not line.startswith("step "):  # the progress bar shows each step
                self.event(line)
        self._dashboard = dashboard

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def render(self) -> RenderableType:
        """Draws the whole screen."""
        header = Table.grid(padding=(0, 2))
        header.add_column(style="dim", no_wrap=True)
        header.add_column(overflow="fold")
        for name, value in self._facts.items():
            header.add_row(escape(name), escape(value))
        low = self._console.size.height < _TALL
        recent = list(self._events)[-3:] if low else self._events
        shown: list[RenderableType] = [] if low and self._dashboard is not None else [header, ""]
        if self._dashboard is not None:
            shown += [_progress(self._dashboard), _nodes(self._dashboard), ""]
        shown += [self._process_states(), "", Text("\n".join(recent), style="dim", no_wrap=True, overflow="ellipsis")]
        title = f"muster devnet · {self._clock.monotonic() - self._began:.0f} s · Ctrl-C stops everything"
        return Panel(Group(*shown), title=title, title_align="left", border_style="cyan")

    def _process_states(self) -> RenderableType:
        cells = []
        for process in self._processes:
            restarts = f" (restarted {process.restarts})" if process.restarts else ""
            state = f"{process.state.value}{restarts}"
            cells.append(Text.assemble(f"{process.name} ", (state, _PROCESS_COLOURS[process.state])))
        return Columns(cells, padding=(0, 2))


def make_view(*, plain: bool) -> View:
    """Returns a live view on a terminal, unless plain lines were requested."""
    return PlainView() if plain or not sys.stdout.isatty() else LiveView()


def _progress(dashboard: Dashboard) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    done, wanted = len(dashboard.steps), dashboard.wanted_steps
    filled = round(_WIDTH * done / max(1, wanted))
    pace = dashboard.seconds_per_step
    left = "" if pace is None else f"  {pace:.1f} s each, {pace * (wanted - done):.0f} s to go"
    rest = "━" * (_WIDTH - filled)
    grid.add_row("step", Text.assemble(("━" * filled, "cyan"), (rest, "bright_black"), f"  {done} of {wanted}{left}"))
    rewards = [step.reward for step in dashboard.steps]
    if rewards:
        grid.add_row("reward", Text.assemble((sparkline(rewards, width=_WIDTH), "yellow"), f"  {rewards[-1]:.2f}"))
    if dashboard.evaluations:
        greedy = [one.greedy for one in dashboard.evaluations]
        rise = f"{greedy[0]:.0%} right" if len(greedy) == 1 else f"{greedy[0]:.0%} → {greedy[-1]:.0%} right, greedy"
        grid.add_row("held-out", Text.assemble((sparkline(greedy, width=_WIDTH), "green"), f"  {rise}"))
        off = [one.distance for one in dashboard.evaluations if one.distance is not None]
        if off:
            curve = sparkline(off, width=_WIDTH, top=max(*off, 1.0))
            grid.add_row("length", Text.assemble((curve, "magenta"), f"  {lengths(dashboard.evaluations[-1])}"))
        for one in dashboard.evaluations[-1].answers[:_SHOWN_ANSWERS]:
            grid.add_row("answer", Text.assemble((_example(one), "green" if one.correct else "red")))
    grid.add_row("versions", Text(_versions(dashboard)))
    grid.add_row("verdicts", Text(_verdicts(dashboard)))
    return grid


def _example(one: ReportedAnswer) -> str:
    return f"{shorten(one.prompt, _WIDTH)} → {shorten(one.answer, _WIDTH)}"


def _versions(dashboard: Dashboard) -> str:
    facts = [f"{dashboard.versions} announced"]
    if dashboard.broadcast_seconds is not None:
        facts.append(f"the newest on every node within {latency(dashboard.broadcast_seconds)}")
    if dashboard.mean_staleness is not None:
        facts.append(f"rollouts {dashboard.mean_staleness:.1f} steps old")
    return ", ".join(facts)


def _verdicts(dashboard: Dashboard) -> str:
    outcomes = ("accepted", "rejected", "forged", "open")
    counts = {name: sum(getattr(node, name) for node in dashboard.nodes) for name in outcomes}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none yet"
    after = dashboard.verdict_latency
    return text if after is None else f"{text}; {latency(after.p50)} after the upload (p99 {latency(after.p99)})"


def _nodes(dashboard: Dashboard) -> RenderableType:
    table = Table(
        "node", "state", "accepted", "forged", "open", "tokens", "earned", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for node in dashboard.nodes:
        name = Text.assemble(node.name, (f" {node.cheat}" if node.cheat else "", "red"))
        state = "evicted" if node.evicted else dashboard.states.get(node.address, "starting")
        counts = (f"{node.accepted:,}", f"{node.forged:,}", f"{node.open:,}", f"{node.tokens:,}")
        style = _NODE_COLOURS.get(state, "yellow")
        table.add_row(name, Text(state, style=style), *counts, escape(format_amount(node.earned)))
    return table


def news(before: Dashboard | None, now: Dashboard) -> list[str]:
    """Returns the changes since the previous dashboard, one line per change."""
    steps_before = 0 if before is None else len(before.steps)
    lines = [
        f"step {step.step + 1} of {now.wanted_steps}: reward {step.reward:.2f}"
        + (f", {step.distance:.2f} tokens from the wanted length" if step.distance is not None else "")
        + (" (before)" if step.step < now.steps_before else "")
        for step in now.steps[steps_before:]
    ]
    known = set() if before is None else {one.version for one in before.evaluations}
    lines += [
        f"version {one.version}: {one.greedy:.1%} of held-out prompts answered right"
        + (f", {lengths(one)}" if one.distance is not None else "")
        + (f"; {_example(one.answers[0])}" if one.answers else "")
        + (" (before)" if one.version < now.steps_before else "")
        for one in now.evaluations
        if one.version not in known
    ]
    former = {} if before is None else {node.name: node for node in before.nodes}
    for node in now.nodes:
        lines += _node_news(former.get(node.name), node)
    return lines


def _node_news(before: NodeAccount | None, now: NodeAccount) -> list[str]:
    forged, evicted, slashed = (0, "", 0) if before is None else (before.forged, before.evicted, before.slashed)
    lines = []
    if now.forged > forged:
        lines.append(f"{now.name}: {now.forged - forged} of its files judged forged")
    if now.slashed > slashed:
        lines.append(f"{now.name}: {format_amount(now.slashed - slashed)} MUST of its stake slashed")
    if now.evicted and not evicted:
        lines.append(f"{now.name}: evicted ({now.evicted})")
    return lines
