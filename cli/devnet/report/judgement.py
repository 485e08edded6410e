"""Judges whether a devnet run met its requirements."""

from __future__ import annotations

from dataclasses import dataclass

from cli.devnet.goals import Goal
from cli.devnet.options import NEVER_SLASHED, ONLY_JUDGED
from cli.devnet.report.model import NodeAccount, RunReport

_CAME_LATE = "it handed in nothing, so that nothing was shown (more --steps give it time)"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a run must have shown."""

    name: str
    met: bool
    found: str
    """Finding in words and numbers."""


def judge(report: RunReport, *, goal: Goal) -> tuple[Criterion, ...]:
    """The criteria of a run, each with what was found.

    Args:
        report: Of the run.
        goal: What it had to reach.
    """
    lengths = [] if goal.distance is None else [_lengths_learned(report, goal.distance)]
    return (_learned(report, goal.rise), *lengths, _nobody_wronged(report), *_cheaters_caught(report))


def _learned(report: RunReport, wanted: float) -> Criterion:
    name = f"held-out greedy accuracy rose by at least {wanted:.0%}".replace("%", " points")
    if report.greedy is None:
        return Criterion(name, met=False, found="it was not measured before and after")
    before, after = report.greedy
    return Criterion(name, met=after - before >= wanted, found=f"from {before:.1%} to {after:.1%}")


def _lengths_learned(report: RunReport, wanted: float) -> Criterion:
    """It must have come nearer, too: a base that is near already has learned nothing."""
    name = f"answers to held-out prompts came within {wanted:g} tokens of the wanted length, on average"
    if report.distance is None:
        return Criterion(name, met=False, found="it was not measured before and after")
    before, after = report.distance
    return Criterion(name, met=after < before and after <= wanted, found=f"from {before:.2f} to {after:.2f} tokens off")


def _nobody_wronged(report: RunReport) -> Criterion:
    wronged = [f"{node.name} ({node.forged})" for node in report.honest if node.forged]
    files = sum(node.files for node in report.honest)
    found = f"called forged: {', '.join(wronged)}" if wronged else f"none of {files} files"
    return Criterion("no honest submission was rejected as forged", met=not wronged and files > 0, found=found)


def _cheaters_caught(report: RunReport) -> list[Criterion]:
    criteria = []
    for node in report.cheaters:
        if node.cheat in NEVER_SLASHED:
            criteria.append(_stopped(node))
            continue
        caught = [f"{node.forged} of {node.files} files called forged" if node.files else _CAME_LATE]
        caught.append("stake slashed" if node.slashed else "no stake slashed")
        caught.append(f"evicted ({node.evicted})" if node.evicted else "still a member")
        met = node.slashed > 0 and bool(node.evicted)
        criteria.append(Criterion(f"{node.name}, who cheats ({node.cheat}), lost", met=met, found="; ".join(caught)))
    return criteria


def _stopped(node: NodeAccount) -> Criterion:
    """Submissions that never become work are unpaid and cost no stake."""
    name = f"{node.name}, who cheats ({node.cheat}), was not paid"
    if node.cheat in ONLY_JUDGED and not node.files:
        return Criterion(name, met=False, found=_CAME_LATE)
    found = f"{node.accepted} of {node.files} files accepted; {'paid' if node.earned else 'nothing paid'}"
    return Criterion(name, met=not node.accepted and not node.earned, found=found)
