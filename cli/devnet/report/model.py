"""Content of a report as plain values; `text` and `page` render it.

Times are seconds since the first lease of the run, money is in the smallest unit of the token, shares are 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.verdicts import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedEvaluation:
    """Evaluation of a version on prompts held out of training."""

    version: int
    greedy: float
    """Share of prompts whose most likely answer is right."""
    pass_at_1: float | None = None
    """Share of drawn answers that are right; None if nothing was drawn."""
    distance: float | None = None
    """Mean distance of answers from the wanted length in tokens; None without a wanted length."""
    lengths: Mapping[int, float] = field(default_factory=dict)
    """Mean length of answers, by the wanted one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStep:
    """One step of the trainer."""

    step: int
    at: float
    """Time at which its version was announced."""
    reward: float
    """Mean over the rollouts that were learned."""
    staleness: Mapping[int, int]
    """Groups by how many versions behind the trainer they were generated."""
    distance: float | None = None
    """Mean distance of its rollouts from the wanted length in tokens; None without a wanted length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """One part of the pipeline over the whole run."""

    name: str
    did: str
    """Amount with its unit."""
    rate: str
    """Amount per second."""
    idle: float
    """Share of the run in which it had nothing to do."""
    predicted_idle: float | None = None
    """Expected value from the times of the stages alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedVerdicts:
    """Files with one outcome and one reason."""

    outcome: Outcome
    reason: str
    honest: int
    cheating: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccount:
    """Work of a node, and its provider's money."""

    name: str
    address: str
    cheat: str = ""
    """Attack of the node; empty for an honest one."""
    accepted: int = 0
    rejected: int = 0
    forged: int = 0
    expired: int = 0
    open: int = 0
    """Files without a verdict when the run ended."""
    tokens: int = 0
    stake_before: int = 0
    stake_after: int = 0
    earned: int = 0
    slashed: int = 0
    evicted: str = ""
    """The reason, if it was; otherwise empty."""

    @property
    def unjudged(self) -> int:
        """Files that expired, or were open when the run ended."""
        return self.expired + self.open

    @property
    def files(self) -> int:
        """Number of files that it submitted."""
        return self.accepted + self.rejected + self.forged + self.expired + self.open


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency of one path through the system."""

    name: str
    count: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of one rollout's way, from when the part before it was done."""

    name: str
    begin: float
    end: float
    kind: str = "wait"
    """One of `KINDS`."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One rollout's way through the system; legs count from its lease."""

    node: str
    step: int
    index: int
    legs: tuple[Leg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A named interval of time."""

    begin: float
    end: float
    kind: str
    """One of `KINDS`."""
    label: str = ""


KINDS = ("generate", "verify", "learn", "broadcast", "wait")
"""Kinds of spans and legs; each has one colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """Activity of one part in the shown window."""

    name: str
    spans: tuple[TimeSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCost:
    """Resource use of a process on this machine."""

    name: str
    cpu_seconds: float
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A whole run."""

    about: Mapping[str, str]
    """Parameters of the run: task, seed, workers, runtime, machine."""
    wall_seconds: float
    """Time from this start of the devnet to its end."""
    steps: tuple[ReportedStep, ...]
    steps_before: int = 0
    """Those of the steps that were learned before this start of the devnet."""
    evaluations: tuple[ReportedEvaluation, ...]
    stages: tuple[PipelineStage, ...]
    verdicts: tuple[ReportedVerdicts, ...]
    nodes: tuple[NodeAccount, ...]
    latencies: tuple[Latency, ...]
    journey: Journey | None
    lanes: tuple[TimelineRow, ...]
    processes: tuple[ProcessCost, ...]

    @property
    def greedy(self) -> tuple[float, float] | None:
        """Held-out greedy accuracy before and after; None if it was not measured twice."""
        if len(self.evaluations) < 2:
            return None
        return self.evaluations[0].greedy, self.evaluations[-1].greedy

    @property
    def distance(self) -> tuple[float, float] | None:
        """Distance of held-out answers from the wanted length, before and after; None unless measured twice."""
        known = [one.distance for one in self.evaluations if one.distance is not None]
        return (known[0], known[-1]) if len(known) > 1 else None

    @property
    def staleness(self) -> dict[int, int]:
        """Groups learned, by how stale they were."""
        total: dict[int, int] = {}
        for step in self.steps:
            for behind, groups in step.staleness.items():
                total[behind] = total.get(behind, 0) + groups
        return dict(sorted(total.items()))

    @property
    def cheaters(self) -> tuple[NodeAccount, ...]:
        """Nodes that cheated."""
        return tuple(node for node in self.nodes if node.cheat)

    @property
    def honest(self) -> tuple[NodeAccount, ...]:
        """Nodes that did not."""
        return tuple(node for node in self.nodes if not node.cheat)
