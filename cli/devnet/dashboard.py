"""State of a run as plain values, shown by the live view and by plain lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cli.devnet.chronicle.assembly import account, evaluations, learned
from cli.devnet.chronicle.data import Material
from cli.devnet.chronicle.timing import announcements, latencies, steps_before
from cli.devnet.chronicle.work import all_work, of
from cli.devnet.report.model import Latency, NodeAccount, ReportedEvaluation, ReportedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A run at one moment."""

    wanted_steps: int
    steps: Sequence[ReportedStep]
    evaluations: Sequence[ReportedEvaluation]
    nodes: Sequence[NodeAccount]
    states: Mapping[str, str]
    """The orchestrator's views of nodes, by address."""
    verdict_latency: Latency | None
    versions: int
    broadcast_seconds: float | None
    """Time from the newest version's announcement until every node had it, if known."""
    block: int
    steps_before: int = 0
    """Steps that were learned before this start of the devnet."""

    @property
    def seconds_per_step(self) -> float | None:
        """Over the last ten steps."""
        last = self.steps[-11:]
        return (last[-1].at - last[0].at) / (len(last) - 1) if len(last) > 1 else None

    @property
    def mean_staleness(self) -> float | None:
        """Of the groups of the last step."""
        if not self.steps or not self.steps[-1].staleness:
            return None
        counts = self.steps[-1].staleness
        return sum(behind * groups for behind, groups in counts.items()) / max(1, sum(counts.values()))


def dashboard(material: Material, *, wanted_steps: int, states: Mapping[str, str]) -> Dashboard:
    """Returns the present state of a run."""
    work = all_work(material)
    ways = [one for one in latencies(work) if one.name == "upload to provisional verdict"]
    named = announcements(material)
    took = [
        max(arrived.values()) - at
        for _, (digest, at) in sorted(named.items())
        if len(arrived := material.arrivals.get(digest, {})) >= 1
    ]
    return Dashboard(
        wanted_steps=wanted_steps,
        steps=learned(material, began=material.began),
        evaluations=evaluations(material),
        nodes=[account(material, one, of(work, one)) for one in material.contributors],
        states=states,
        verdict_latency=ways[0] if ways else None,
        versions=len(named),
        broadcast_seconds=took[-1] if took else None,
        block=max(material.blocks, default=0),
        steps_before=steps_before(material),
    )
