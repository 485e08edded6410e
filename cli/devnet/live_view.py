"""A run at one moment, drawn for a terminal, and what is new since the moment before, said in lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.devnet.dashboard import Dashboard
from cli.devnet.report.model import NodeAccount
from cli.devnet.report.words import briefly, lengths, money, spark

_WIDTH = 40


def picture(dashboard: Dashboard) -> RenderableType:
    """Progress, learning, and a row for each node."""
    return Group(_progress(dashboard), _nodes(dashboard))


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
        grid.add_row("reward", Text.assemble((spark(rewards, width=_WIDTH), "yellow"), f"  {rewards[-1]:.2f}"))
    if dashboard.evaluations:
        greedy = [one.greedy for one in dashboard.evaluations]
        grid.add_row("held-out", Text.assemble((spark(greedy, width=_WIDTH), "green"), f"  {_rise(greedy)}"))
        off = [one.distance for one in dashboard.evaluations if one.distance is not None]
        if off:
            curve = spark(off, width=_WIDTH, top=max(*off, 1.0))
            grid.add_row("length", Text.assemble((curve, "magenta"), f"  {lengths(dashboard.evaluations[-1])}"))
    grid.add_row("versions", Text(_versions(dashboard)))
    grid.add_row("verdicts", Text(_verdicts(dashboard)))
    return grid


def _rise(greedy: Sequence[float]) -> str:
    return f"{greedy[0]:.0%} right" if len(greedy) == 1 else f"{greedy[0]:.0%} → {greedy[-1]:.0%} right, greedy"


def _versions(dashboard: Dashboard) -> str:
    said = [f"{dashboard.versions} announced"]
    if dashboard.broadcast_seconds is not None:
        said.append(f"the newest on every node within {briefly(dashboard.broadcast_seconds)}")
    if dashboard.mean_staleness is not None:
        said.append(f"rollouts {dashboard.mean_staleness:.1f} steps old")
    return ", ".join(said)


def _verdicts(dashboard: Dashboard) -> str:
    counts = {
        "accepted": sum(node.accepted for node in dashboard.nodes),
        "rejected": sum(node.rejected for node in dashboard.nodes),
        "forged": sum(node.forged for node in dashboard.nodes),
        "open": sum(node.open for node in dashboard.nodes),
    }
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none yet"
    latency = dashboard.verdict_latency
    return said if latency is None else f"{said}; {briefly(latency.p50)} after the upload (p99 {briefly(latency.p99)})"


def _nodes(dashboard: Dashboard) -> RenderableType:
    table = Table(
        "node", "state", "accepted", "forged", "open", "tokens", "earned", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for node in dashboard.nodes:
        name = Text.assemble(node.name, (f" {node.cheat}" if node.cheat else "", "red"))
        state = "evicted" if node.evicted else dashboard.states.get(node.address, "starting")
        counts = (f"{node.accepted:,}", f"{node.forged:,}", f"{node.open:,}", f"{node.tokens:,}")
        table.add_row(name, Text(state, style=_colour(state)), *counts, escape(money(node.earned)))
    return table


def _colour(state: str) -> str:
    return {"healthy": "green", "evicted": "red", "banned": "red", "dead": "red"}.get(state, "yellow")


def news(before: Dashboard | None, now: Dashboard) -> list[str]:
    """Returns new facts, one line each."""
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
        + (" (before)" if one.version < now.steps_before else "")
        for one in now.evaluations
        if one.version not in known
    ]
    former = {} if before is None else {node.name: node for node in before.nodes}
    for node in now.nodes:
        lines += _fate(former.get(node.name), node)
    return lines


def _fate(before: NodeAccount | None, now: NodeAccount) -> list[str]:
    forged, evicted, slashed = (0, "", 0) if before is None else (before.forged, before.evicted, before.slashed)
    lines = []
    if now.forged > forged:
        lines.append(f"{now.name}: {now.forged - forged} of its files called forged")
    if now.slashed > slashed:
        lines.append(f"{now.name}: {money(now.slashed - slashed)} MUST of its stake slashed")
    if now.evicted and not evicted:
        lines.append(f"{now.name}: evicted ({now.evicted})")
    return lines
