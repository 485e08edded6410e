"""The report as text, and formats of numbers that the HTML page and the live view share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from cli.devnet.report.data import Catch, Criterion, NodeAccount, ReportedAnswer, ReportedEvaluation, RunReport
from cli.output.printing import shorten
from cli.output.quantities import counted
from ledger.amounts import format_amount
from protocol.runtime.logs import printable

_SPARKS = "▁▂▃▄▅▆▇█"
_SHOWN_ANSWERS = 4
_ANSWER_WIDTH = 88
_LINE = 110
"""Longest line, in characters."""
_NODE_HEAD = ("node", "files", "accepted", "rejected", "forged", "unjudged", "stake", "earned", "slashed", "state")
_BATCH_HEAD = ("node", "no answer in progress", "less than half full")


def duration(seconds: float) -> str:
    """Formats a long duration: `3 min 07 s`, `41 s`."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def latency(seconds: float) -> str:
    """Formats a short duration: `420 ms`, `1.31 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def stake(node: NodeAccount) -> str:
    """Formats the stake of a node's provider before and after the run."""
    return f"{format_amount(node.stake_before)} → {format_amount(node.stake_after)}"


def membership(node: NodeAccount) -> str:
    """Returns `member`, or the reason for which the node was evicted."""
    return f"evicted: {node.evicted}" if node.evicted else "member"


def lengths(one: ReportedEvaluation) -> str:
    """Formats answer lengths: `0.42 tokens off; wanted 1: 1.1, 3: 3.0`.

    The text is empty if prompts request no length.
    """
    if one.distance is None:
        return ""
    means = ", ".join(f"{wanted}: {mean:.1f}" for wanted, mean in one.lengths.items())
    return f"{one.distance:.2f} tokens off" + (f"; wanted {means}" if means else "")


def sparkline(values: Sequence[float], *, width: int = 60, top: float = 1.0) -> str:
    """Draws values from 0 to `top` as a row of at most `width` block characters."""
    count = min(len(values), width)
    blocks = []
    for number in range(count):
        part = values[number * len(values) // count : (number + 1) * len(values) // count]
        mean = min(max(sum(part) / len(part) / top, 0.0), 0.999)
        blocks.append(_SPARKS[int(mean * len(_SPARKS))])
    return "".join(blocks)


def as_text(report: RunReport, criteria: Sequence[Criterion]) -> str:
    """Returns the whole report as text with lines of at most about 110 characters."""
    sections = (
        ("", [f"{name}: {shorten(value, _LINE)}" for name, value in report.about.items()]),
        ("Criteria", [f"[{'yes' if one.met else ' NO'}] {one.name}: {one.found}" for one in criteria]),
        ("Learning", _learning(report)),
        ("Answers to held-out prompts, before and after", _answers(report)),
        ("Sampled rollouts of the first and the last learned step", _samples(report)),
        *((f"How {one.node} ({one.cheat}) was caught", _catch(one)) for one in report.catches),
        (
            "Stages",
            _table(
                ("stage", "amount", "rate", "idle", "predicted"),
                [
                    (
                        one.name,
                        one.amount,
                        one.rate,
                        f"{one.idle:.0%}",
                        "" if one.predicted_idle is None else f"{one.predicted_idle:.0%}",
                    )
                    for one in report.stages
                ],
            ),
        ),
        (
            "Verdicts",
            _table(
                ("outcome", "reason", "honest", "cheating"),
                [(one.outcome.name.lower(), one.reason, one.honest, one.cheating) for one in report.verdicts],
            ),
        ),
        ("Nodes", _table(_NODE_HEAD, [_node(one) for one in report.nodes])),
        ("Batches of the engines, share of the time", _table(_BATCH_HEAD, list(map(_batch, measured_batches(report))))),
        (
            "Latencies",
            _table(
                ("path", "count", "p50", "p99"),
                [(one.name, one.count, latency(one.p50), latency(one.p99)) for one in report.latencies],
            ),
        ),
        ("Path of one rollout", _journey(report)),
        ("Staleness of learned groups", [f"{behind} behind: {count}" for behind, count in report.staleness.items()]),
        (
            "Processes",
            _table(
                ("process", "CPU s", "MiB"),
                [(one.name, f"{one.cpu_seconds:.1f}", f"{one.memory_mib:.0f}") for one in report.processes],
            ),
        ),
        ("Versions and machine", [f"{name}: {shorten(value, _LINE)}" for name, value in report.machine.items()]),
    )
    before = f" ({report.steps_before} more before)" if report.steps_before else ""
    learned = len(report.steps) - report.steps_before
    head = f"Muster devnet: {counted(learned, 'step')} in {duration(report.wall_seconds)}{before}"
    blocks = ["\n".join([title, "-" * len(title), *lines] if title else lines) for title, lines in sections if lines]
    return printable("\n\n".join([f"{head}\n{'=' * len(head)}", *blocks]) + "\n")


def _learning(report: RunReport) -> list[str]:
    lines = []
    if report.steps:
        rewards = [step.reward for step in report.steps]
        lines.append(f"reward     {sparkline(rewards)}  {rewards[0]:.2f} → {rewards[-1]:.2f}")
    distances = [step.distance for step in report.steps if step.distance is not None]
    if distances:
        curve = sparkline(distances, top=max(*distances, 1.0))
        lines.append(f"off        {curve}  {distances[0]:.2f} → {distances[-1]:.2f} tokens from the wanted length")
    for one in report.evaluations:
        sampled = "" if one.pass_at_1 is None else f", pass@1 {one.pass_at_1:.1%}"
        off = f", {lengths(one)}" if one.distance is not None else ""
        lines.append(f"version {one.version:>4}: greedy {one.greedy:.1%}{sampled}{off}")
    return lines


def _answers(report: RunReport) -> list[str]:
    lines = []
    for before, after in report.answer_pairs[:_SHOWN_ANSWERS]:
        lines.append(shorten(before.prompt, _ANSWER_WIDTH))
        for name, one in (("before,", before), ("after, ", after)):
            judged = f"  {name} {'right' if one.correct else 'wrong'}"
            if one.turns:
                lines.append(f"{judged}, {rewarded(one)}:")
                lines += [f"    {'>' if drawn else '<'} {shorten(text, _ANSWER_WIDTH)}" for drawn, text in one.dialogue]
            else:
                lines.append(f"{judged}: {shorten(one.answer, _ANSWER_WIDTH)}")
    return lines


def _samples(report: RunReport) -> list[str]:
    return [
        f"step {one.step + 1}, reward {one.reward:.2f}: {shorten(one.prompt, 40)} → {shorten(one.answer, 40)}"
        for one in report.samples
    ]


def _catch(one: Catch) -> list[str]:
    took = "" if one.seconds is None else f", {latency(one.seconds)} after its upload"
    lines = [
        f"{one.outcome.name.lower()}, reason {one.reason}: the file of step {one.step + 1}, slot {one.index}{took}",
        *textwrap.wrap(one.why, _LINE),
        *(textwrap.wrap(f"the validator: {shorten(one.words, 1000)}", _LINE) if one.words else ()),
    ]
    for check in one.checks:
        places = (("row", check.row), ("group", check.group), ("token", check.position))
        place = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        first = f"the first one ({place})" if place else "the first one"
        what = textwrap.wrap(shorten(check.what, 1000), _LINE - 2)
        lines += [
            f"failed check {check.name}, {counted(check.found, 'finding')}; {first}:",
            *[f"  {each}" for each in what],
        ]
    if not one.checks:
        lines.append("the audit file of this verdict is missing in the store, so the checks are not known")
    return lines


def rewarded(answer: ReportedAnswer) -> str:
    """Formats length and reward of a dialogue: `3 turns, reward 1.00`."""
    reward = "" if answer.reward is None else f", reward {answer.reward:.2f}"
    return counted(answer.turns, "turn") + reward


def _node(node: NodeAccount) -> tuple[object, ...]:
    name = f"{node.name} ({node.cheat})" if node.cheat else node.name
    counts = (node.files, node.accepted, node.rejected, node.forged, node.unjudged)
    return name, *counts, stake(node), format_amount(node.earned), format_amount(node.slashed), membership(node)


def measured_batches(report: RunReport) -> list[NodeAccount]:
    """Returns the nodes that reported how full their engine's batch was."""
    return [node for node in report.nodes if node.batch_idle is not None]


def _batch(node: NodeAccount) -> tuple[object, ...]:
    return node.name, share(node.batch_idle), share(node.batch_under_half)


def share(value: float | None) -> str:
    """Returns a share as text."""
    return "" if value is None else f"{value:.0%}"


def _journey(report: RunReport) -> list[str]:
    journey = report.journey
    if journey is None:
        return []
    rows = [(leg.name, f"+{leg.begin:.2f} s", latency(leg.end - leg.begin), leg.note) for leg in journey.legs]
    head = f"{journey.node}, step {journey.step}, slot {journey.index}"
    return [head, *_table(("part", "from", "took", ""), rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Formats aligned columns; returns no lines if there are no rows."""
    if not rows:
        return []
    cells = [list(head), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
