"""The report as text, for a terminal and for `report.txt`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cli.devnet.report.judgement import Criterion
from cli.devnet.report.model import ReportedEvaluation, RunReport
from cli.devnet.report.words import briefly, duration, fate, lengths, money, spark

_NODE_HEAD = ("node", "files", "accepted", "rejected", "forged", "unjudged", "stake", "earned", "slashed", "now")


def as_text(report: RunReport, criteria: Sequence[Criterion]) -> str:
    """The whole report; lines of at most about 110 characters."""
    sections = (
        ("", [f"{name}: {value}" for name, value in report.about.items()]),
        ("What it had to show", [_criterion(one) for one in criteria]),
        ("Learning", _learning(report)),
        ("Stages", _table(("stage", "did", "rate", "idle", "predicted"), _stages(report))),
        ("Verdicts", _table(("outcome", "reason", "honest", "cheating"), _verdicts(report))),
        ("Nodes", _table(_NODE_HEAD, _nodes(report))),
        ("Latencies", _table(("way", "count", "p50", "p99"), _latencies(report))),
        ("One rollout's way", _journey(report)),
        ("Staleness of what was learned", [f"{behind} behind: {count}" for behind, count in report.staleness.items()]),
        ("Processes", _table(("process", "CPU s", "MiB"), _processes(report))),
    )
    blocks = []
    for title, lines in sections:
        if lines:
            blocks.append("\n".join(([title, "-" * len(title)] if title else []) + list(lines)))
    before = f" ({report.steps_before} more before)" if report.steps_before else ""
    learned = len(report.steps) - report.steps_before
    head = f"Muster devnet: {learned} steps in {duration(report.wall_seconds)}{before}"
    return "\n\n".join([f"{head}\n{'=' * len(head)}", *blocks]) + "\n"


def _criterion(one: Criterion) -> str:
    return f"[{'yes' if one.met else ' NO'}] {one.name}: {one.found}"


def _learning(report: RunReport) -> list[str]:
    found = []
    if report.steps:
        rewards = [step.reward for step in report.steps]
        found.append(f"reward     {spark(rewards)}  {rewards[0]:.2f} → {rewards[-1]:.2f}")
    distances = [step.distance for step in report.steps if step.distance is not None]
    if distances:
        curve = spark(distances, top=max(*distances, 1.0))
        found.append(f"off        {curve}  {distances[0]:.2f} → {distances[-1]:.2f} tokens from the wanted length")
    found += [_evaluation(one) for one in report.evaluations]
    return found


def _evaluation(one: ReportedEvaluation) -> str:
    drawn = "" if one.pass_at_1 is None else f", pass@1 {one.pass_at_1:.1%}"
    off = f", {lengths(one)}" if one.distance is not None else ""
    return f"version {one.version:>4}: greedy {one.greedy:.1%}{drawn}{off}"


def _stages(report: RunReport) -> Iterable[Sequence[str]]:
    for stage in report.stages:
        predicted = "" if stage.predicted_idle is None else f"{stage.predicted_idle:.0%}"
        yield stage.name, stage.did, stage.rate, f"{stage.idle:.0%}", predicted


def _verdicts(report: RunReport) -> Iterable[Sequence[str]]:
    for one in report.verdicts:
        yield one.outcome.name.lower(), one.reason, str(one.honest), str(one.cheating)


def _nodes(report: RunReport) -> Iterable[Sequence[str]]:
    for node in report.nodes:
        name = f"{node.name} ({node.cheat})" if node.cheat else node.name
        counts = (str(node.files), str(node.accepted), str(node.rejected), str(node.forged), str(node.unjudged))
        stake = f"{money(node.stake_before)} → {money(node.stake_after)}"
        yield name, *counts, stake, money(node.earned), money(node.slashed), fate(node)


def _latencies(report: RunReport) -> Iterable[Sequence[str]]:
    for one in report.latencies:
        yield one.name, str(one.count), briefly(one.p50), briefly(one.p99)


def _journey(report: RunReport) -> list[str]:
    journey = report.journey
    if journey is None:
        return []
    head = f"{journey.node}, step {journey.step}, slot {journey.index}"
    rows = [(leg.name, f"+{leg.begin:.2f} s", briefly(leg.end - leg.begin), leg.note) for leg in journey.legs]
    return [head, *_table(("part", "from", "took", ""), rows)]


def _processes(report: RunReport) -> Iterable[Sequence[str]]:
    for one in report.processes:
        yield one.name, f"{one.cpu_seconds:.1f}", f"{one.memory_mib:.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as they need; nothing at all without rows."""
    body = list(rows)
    if not body:
        return []
    widths = [max(len(row[column]) for row in (head, *body)) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *body)
    ]
