"""Broadcasts a run's checkpoints over failing relays: one is killed repeatedly, one spoils every tenth block.

    python -m benchmarks.broadcast_under_faults [--versions 6] [--size MIB] [--every SECONDS] [--within SECONDS]

A trainer publishes a checkpoint every 20 s; two relays pass it on to four workers. The first relay is killed with
SIGKILL in the middle of every third version and started again in the middle of the next. In every tenth block from the
second relay one bit is flipped.

Claims: every worker has each version, or a newer one, within a stated time after it was sealed; every folder on every
worker's disk hashes to the published digest; and bad blocks did arrive. Exits with code 1 if a claim fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ending import end_in_order
from benchmarks.shardcast_run.broadcast import free_port, room
from benchmarks.shardcast_run.processes import Measured, all_stopped, role
from protocol.checkpoints import folder_files, version_digest

KILLED_AT = 2
"""The relay is killed within this version, and within every third one after it."""

NAMES = ("killed", "spoiling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The published versions and the expected times."""

    versions: int = 6
    mebibytes: int = 100
    every_s: float = 20.0
    within_s: float = 10.0
    clients: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one version."""

    version: int
    begun: float
    sealed: float
    """Seconds from the start of the first version."""
    late: list[float | None]
    """For each client: seconds from the seal until it had this version or a newer one."""
    bad: int
    """Bad blocks that all clients had received by then."""
    standing: list[float]
    """The clients' mean rating of each relay at that time."""


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    rows: list[Row] = field(default_factory=list)
    kills: int = 0
    folders: int = 0
    """Number of version folders on all clients' disks at the end."""
    wrong: list[str] = field(default_factory=list)
    """Folders that differ from the published version."""

    @property
    def latest(self) -> float | None:
        """Returns the seconds of the slowest client at any version; None if a version never arrived."""
        late = [each for row in self.rows for each in row.late]
        return None if None in late else max((each for each in late if each is not None), default=None)

    def failures(self, plan: Plan) -> list[str]:
        """Returns the claims that failed."""
        found = [f"not what was published: {path}" for path in self.wrong]
        if self.latest is None or self.latest > plan.within_s:
            found.append(f"a client was not on the newest version within {plan.within_s:g} s")
        if not self.kills or not self.rows or not self.rows[-1].bad:
            found.append("no relay was killed, or no bad block came: nothing was shown")
        if not self.folders:
            found.append("the clients' disks are empty")
        return found


class Stage:
    """The processes of one run.

    Args:
        plan: The run's plan.
        folder: The folder for all files.
        started: The list to which every process is added; the owner of the list ends them.
    """

    def __init__(self, plan: Plan, folder: Path, started: list[Measured]) -> None:
        self.plan = plan
        self.folder = folder
        self._started = started
        self._above, self._port, spoiling = (free_port() for _ in range(3))
        self.origin = self._start(
            "origin", "origin", folder / "origin", self._above, plan.versions, plan.mebibytes, plan.every_s
        )
        self.killed = self._start_killed(0)
        spoiler = self._start("relay1", "spoiler", folder / "relay1", spoiling, self._above)
        for each in (self.origin, self.killed, spoiler):
            each.wait_for("port")
        self.clients = self._start("clients", "clients", folder / "clients", plan.clients, self._port, spoiling)
        while len(self.clients.said("ready")) < plan.clients:
            self.clients.wait_for("ready")
            time.sleep(0.02)

    def run(self) -> Outcome:
        """Publishes all versions and collects the results."""
        outcome = Outcome()
        self.origin.tell("go")
        for version in range(1, self.plan.versions + 1):
            self._wait(self.origin, "begun", version)
            time.sleep(min(self.plan.every_s * 0.1, 0.4))  # so that the version is being sent
            if version % 3 == KILLED_AT % 3:
                self.killed.kill()
                outcome.kills += 1
            elif version % 3 == (KILLED_AT + 1) % 3:
                time.sleep(self.plan.every_s * 0.4)
                self.killed = self._start_killed(outcome.kills)
        self._wait(self.clients, "has", self.plan.versions, lines=self.plan.clients)
        outcome.rows = self._rows()
        self._check_disks(outcome)
        return outcome

    def _start(self, name: str, *arguments: object) -> Measured:
        self._started.append(Measured(name, role("faulty", *arguments), folder=self.folder))
        return self._started[-1]

    def _start_killed(self, kills: int) -> Measured:
        return self._start(f"relay0-{kills}", "relay", self.folder / "relay0", self._port, self._above)

    def _wait(self, process: Measured, what: str, version: int, *, lines: int = 1) -> None:
        """Waits until the process has reported this version a number of times.

        Gives up when that takes too long; the rows then show the failure.
        """
        until = time.monotonic() + 2 * self.plan.every_s + 3 * self.plan.within_s
        while sum(line["version"] >= version for line in process.said(what)) < lines and time.monotonic() < until:
            time.sleep(0.02)

    def _rows(self) -> list[Row]:
        begun = {line["version"]: float(line["begun"]) for line in self.origin.said("begun")}
        sealed = {line["version"]: float(line["sealed"]) for line in self.origin.said("sealed")}
        had = self.clients.said("has")
        rows = []
        for version in sorted(sealed):
            firsts = [
                next((line for line in had if line["client"] == number and line["version"] >= version), None)
                for number in range(self.plan.clients)
            ]
            came = [line for line in firsts if line is not None]
            rows.append(
                Row(
                    version=version,
                    begun=begun[version] - begun[1],
                    sealed=sealed[version] - begun[1],
                    late=[None if line is None else line["has"] - sealed[version] for line in firsts],
                    bad=sum(sum(line["bad"]) for line in came),
                    standing=[sum(line["standing"][n] for line in came) / max(1, len(came)) for n in range(len(NAMES))],
                )
            )
        return rows

    def _check_disks(self, outcome: Outcome) -> None:
        published = {str(line["version"]): line["digest"] for line in self.origin.said("sealed")}
        for number in range(self.plan.clients):
            for path in (self.folder / "clients" / str(number)).glob("[0-9]*"):
                outcome.folders += 1
                if version_digest(folder_files(path)) != published.get(path.name):
                    outcome.wrong.append(str(path))


def measure(plan: Plan, folder: Path) -> Outcome:
    """Runs the plan once; every process has ended on return."""
    started: list[Measured] = []
    with all_stopped(started):
        return Stage(plan, folder, started).run()


def show(outcome: Outcome, plan: Plan) -> None:
    """Prints the table and the claims."""
    print(
        f"{plan.mebibytes} MiB every {plan.every_s:g} s over two relays; seconds from each version's seal to its whole"
    )
    clients = "".join(f"{f'client {n}':>10}" for n in range(plan.clients))
    standings = "".join(f"{f'standing: {name}':>20}" for name in NAMES)
    print(f"{'version':>7}{'begun':>8}{'sealed':>8}{clients}{'bad blocks':>12}{standings}")
    for row in outcome.rows:
        late = "".join(f"{'never' if each is None else f'{each:.2f}':>10}" for each in row.late)
        standing = "".join(f"{each:>20.2f}" for each in row.standing)
        print(f"{row.version:>7}{row.begun:>8.1f}{row.sealed:>8.1f}{late}{row.bad:>12}{standing}")
    latest = "never" if outcome.latest is None else f"{outcome.latest:.2f} s"
    print(
        f"slowest: {latest} (claimed: at most {plan.within_s:g} s); relay killed {outcome.kills} times; "
        f"{outcome.folders - len(outcome.wrong)} of {outcome.folders} folders on the clients' disks are right"
    )


def main(arguments: Sequence[str]) -> int:
    """Runs, prints, and returns 1 if a claim fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broadcast_under_faults")
    parser.add_argument("--versions", type=int, default=6)
    parser.add_argument("--size", type=int, default=100, help="MiB of a checkpoint")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two checkpoints")
    parser.add_argument("--within", type=float, default=10.0, help="seconds after which every client must have it")
    parser.add_argument("--folder", type=Path, help="where files are written; the system's place by default")
    told = parser.parse_args(arguments)
    plan = Plan(versions=told.versions, mebibytes=told.size, every_s=told.every, within_s=told.within)
    with room(told.folder) as folder:
        outcome = measure(plan, folder)
    show(outcome, plan)
    failures = outcome.failures(plan)
    for each in failures:
        print(f"FAILED: {each}")
    return 1 if failures else 0


if __name__ == "__main__":
    end_in_order()
    sys.exit(main(sys.argv[1:]))
