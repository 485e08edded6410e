"""Completes a run: waits until its last verdicts are final, then judges and reports it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cli.devnet.chronicle.assembly import assemble
from cli.devnet.chronicle.data import Material
from cli.devnet.chronicle.recorder import Chronicle
from cli.devnet.chronicle.work import all_work
from cli.devnet.goals import Goal
from cli.devnet.report.judgement import Criterion, judge
from cli.devnet.report.model import RunReport
from cli.devnet.report.page import as_page
from cli.devnet.report.text import as_text
from protocol.runtime.clock import Clock

_PATIENCE = timedelta(seconds=20)
_LOOK_AGAIN = timedelta(milliseconds=300)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run."""

    report: RunReport
    criteria: tuple[Criterion, ...]

    @classmethod
    def of(cls, material: Material, *, goal: Goal) -> RunResult:
        """The ending of a run of which so much is known.

        Args:
            material: All of it.
            goal: What it had to reach.
        """
        report = assemble(material)
        return cls(report, judge(report, goal=goal))

    @property
    def good(self) -> bool:
        """True if the run met its requirements."""
        return all(one.met for one in self.criteria)

    @property
    def text(self) -> str:
        """The report for a terminal."""
        return as_text(self.report, self.criteria)

    def write(self, folder: Path) -> None:
        """Puts both forms of the report into a folder."""
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / "report.txt").write_text(self.text)
        (folder / "report.html").write_text(as_page(self.report, self.criteria))


async def settle(chronicle: Chronicle, *, clock: Clock) -> None:
    """Waits until what was submitted by now is final: paid, slashed, expired; not for ever."""
    until = clock.monotonic() + _PATIENCE.total_seconds()
    wanted = {one.key for one in all_work(chronicle.so_far())}
    while clock.monotonic() < until:
        settled = {one.key for one in all_work(chronicle.so_far()) if one.final or one.expired}
        if wanted <= settled:
            return
        await clock.sleep(_LOOK_AGAIN)
