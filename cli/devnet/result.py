"""Result of a run: its report, and whether it met the criteria of a good run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.devnet.options import NEVER_SLASHED, ONLY_JUDGED, Goal
from cli.devnet.report.assembly import assemble
from cli.devnet.report.data import Criterion, NodeAccount, RunRecord, RunReport
from cli.devnet.report.data_file import as_json
from cli.devnet.report.page import as_page
from cli.devnet.report.text import as_text
from cli.output.quantities import counted

_NOTHING_SUBMITTED = "it submitted nothing, so the run shows nothing about the attack (more --steps give the node time)"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Report on a run with its criteria."""

    report: RunReport
    criteria: tuple[Criterion, ...]

    @classmethod
    def of(cls, record: RunRecord, *, goal: Goal) -> RunResult:
        """Computes the report of a recorded run and judges it."""
        report = assemble(record)
        return cls(report, judge(report, goal=goal))

    @property
    def good(self) -> bool:
        """True if the run met all criteria."""
        return all(one.met for one in self.criteria)

    @property
    def text(self) -> str:
        """The report for a terminal."""
        return as_text(self.report, self.criteria)

    def write(self, folder: Path) -> None:
        """Writes `report.txt`, `report.html` and `report.json` into a folder."""
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / "report.txt").write_text(self.text)
        (folder / "report.html").write_text(as_page(self.report, self.criteria))
        (folder / "report.json").write_text(as_json(self.report, self.criteria))


def judge(report: RunReport, *, goal: Goal) -> tuple[Criterion, ...]:
    """Returns the criteria of a run, each with the run's result.

    Args:
        report: Report on the run.
        goal: Quality that the policy had to reach.
    """
    lengths = [] if goal.distance is None else [_lengths_learned(report, goal.distance)]
    return (_learned(report, goal.rise), *lengths, _honest_accepted(report), *map(_cheater_stopped, report.cheaters))


def _learned(report: RunReport, wanted: float) -> Criterion:
    name = f"held-out greedy accuracy rose by at least {wanted:.0%}".replace("%", " points")
    if report.greedy is None:
        return Criterion(name, met=False, found="there are not two evaluations to compare")
    before, after = report.greedy
    return Criterion(name, met=after - before >= wanted, found=f"from {before:.1%} to {after:.1%}")


def _lengths_learned(report: RunReport, wanted: float) -> Criterion:
    """Judges whether answers came close enough to the wanted length.

    Requires an improvement, too, because a base model may be close enough without learning.
    """
    name = f"answers to held-out prompts came within {wanted:g} tokens of the wanted length, on average"
    if report.distance is None:
        return Criterion(name, met=False, found="there are not two evaluations to compare")
    before, after = report.distance
    return Criterion(name, met=after < before and after <= wanted, found=f"from {before:.2f} to {after:.2f} tokens off")


def _honest_accepted(report: RunReport) -> Criterion:
    forged = [f"{node.name} ({node.forged})" for node in report.honest if node.forged]
    files = sum(node.files for node in report.honest)
    found = f"judged forged: {', '.join(forged)}" if forged else f"none of {counted(files, 'file')}"
    return Criterion("no honest submission was judged forged", met=not forged and files > 0, found=found)


def _cheater_stopped(node: NodeAccount) -> Criterion:
    if node.cheat in NEVER_SLASHED:
        # These attacks cost no stake: the network refuses their submissions before a verdict, or a verdict rejects
        # them without a slash. So the criterion is met if the node was not paid.
        name = f"{node.name} ({node.cheat}) was not paid"
        if node.cheat in ONLY_JUDGED and not node.files:
            return Criterion(name, met=False, found=_NOTHING_SUBMITTED)
        found = (
            f"{node.accepted} of {counted(node.files, 'file')} accepted; {'paid' if node.earned else 'nothing paid'}"
        )
        return Criterion(name, met=not node.accepted and not node.earned, found=found)
    found = "; ".join(
        (
            f"{node.forged} of {counted(node.files, 'file')} judged forged" if node.files else _NOTHING_SUBMITTED,
            "stake slashed" if node.slashed else "no stake slashed",
            f"evicted ({node.evicted})" if node.evicted else "still a member",
        )
    )
    name = f"{node.name} ({node.cheat}) was slashed and evicted"
    return Criterion(name, met=node.slashed > 0 and bool(node.evicted), found=found)
