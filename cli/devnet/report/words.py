"""Numbers as the report says them, the same in both of its forms."""

from __future__ import annotations

from collections.abc import Sequence

from cli.devnet.report.model import NodeAccount, ReportedEvaluation, RunReport
from ledger.amounts import format_amount

_SPARKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """`3 min 07 s`, `41 s`."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def briefly(seconds: float) -> str:
    """`420 ms`, `1.31 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def money(amount: int) -> str:
    """An amount of the token, without its name."""
    return format_amount(amount)


def fate(node: NodeAccount) -> str:
    """Returns the fate of a node in a few words."""
    if node.evicted:
        return f"evicted: {node.evicted}"
    return "member"


def lengths(one: ReportedEvaluation) -> str:
    """`0.42 tokens off; wanted 1: 1.1, 3: 3.0`, or nothing where no length is wanted."""
    if one.distance is None:
        return ""
    means = ", ".join(f"{wanted}: {mean:.1f}" for wanted, mean in one.lengths.items())
    return f"{one.distance:.2f} tokens off" + (f"; wanted {means}" if means else "")


def tiles(report: RunReport) -> list[tuple[str, str]]:
    """Returns the headline figures, each with its label."""
    found: list[tuple[str, str]] = []
    if report.greedy is not None:
        before, after = report.greedy
        found.append((f"{before:.0%} → {after:.0%}", "right answers on held-out prompts, greedy"))
    if report.distance is not None:
        far, near = report.distance
        found.append((f"{far:.2f} → {near:.2f}", "tokens from the wanted length, held-out prompts"))
    earlier = f", {report.steps_before} more before" if report.steps_before else ""
    found.append((f"{len(report.steps) - report.steps_before}", f"steps in {duration(report.wall_seconds)}{earlier}"))
    accepted, forged = sum(node.accepted for node in report.nodes), sum(node.forged for node in report.nodes)
    found.append((f"{accepted:,} / {forged}", "files accepted / called forged"))
    stakes = [(node, f"{money(node.stake_before)} → {money(node.stake_after)}") for node in report.cheaters]
    found += [(stake, f"stake of {node.name}, who cheats") for node, stake in stakes]
    found += [(briefly(one.p50), f"{one.name}, p50; p99 {briefly(one.p99)}") for one in report.latencies[:1]]
    return found


def spark(values: Sequence[float], *, width: int = 60, top: float = 1.0) -> str:
    """Values from 0 to `top` as a row of at most `width` blocks."""
    count = min(len(values), width)
    shown = []
    for number in range(count):
        part = values[number * len(values) // count : (number + 1) * len(values) // count]
        mean = min(max(sum(part) / len(part) / top, 0.0), 0.999)
        shown.append(_SPARKS[int(mean * len(_SPARKS))])
    return "".join(shown)
