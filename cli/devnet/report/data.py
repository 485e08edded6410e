"""Plain values of a run: the record of observations, and the report computed from it.

In a report, times are seconds since the first lease of the run. In a record, times are Unix times in seconds. In both,
money is in units of 10⁻¹⁸ MUST, and shares are from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledger.events.types import LedgerEvent
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome
from protocol.wire.audits import AuditFile
from protocol.wire.listings import RolloutItem
from protocol.wire.runs import RunSamples
from protocol.wire.slots import LeaseView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedAnswer:
    """Greedy answer to a held-out prompt, or the greedy dialogue that begins with it."""

    prompt: str
    answer: str
    """The answer, or the transcript of the dialogue (`rollouts.dialogue.transcript`)."""
    correct: bool
    reward: float | None = None
    """None if the record is of an older release."""
    turns: int = 0
    """Number of the model's messages in a dialogue; 0 for a single answer."""

    @property
    def dialogue(self) -> tuple[tuple[bool, str], ...]:
        """The messages of a dialogue in order, each with whether the model wrote it; empty for a single answer.

        In a transcript, a line of the model begins with `> `, one that it read with `< `, and a further line of the
        same message with two spaces.
        """
        found: list[tuple[bool, str]] = []
        for line in self.answer.split("\n") if self.turns else ():
            mark, text = line[:2], line[2:]
            if mark in {"> ", "< "} or not found:
                found.append((mark != "< ", text))
            else:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{text}")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedEvaluation:
    """Evaluation of a version on prompts held out of training."""

    version: int
    greedy: float
    """Share of prompts that the most likely (greedy) answer solves."""
    pass_at_1: float | None = None
    """Share of sampled answers that are right; None if none were sampled."""
    distance: float | None = None
    """Mean distance of answers from the requested length in tokens; None if no length is requested."""
    lengths: Mapping[int, float] = field(default_factory=dict)
    """Mean length of answers, by requested length."""
    answers: tuple[ReportedAnswer, ...] = ()
    """Answers to a few prompts, the same ones in each evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStep:
    """One step of the trainer."""

    step: int
    at: float
    """Time at which the trainer finished the step."""
    reward: float
    """Mean reward of the rollouts of the step."""
    staleness: Mapping[int, int]
    """Number of groups by staleness: the number of steps by which the policy that generated the group is older than the
    policy that learns from it."""
    distance: float | None = None
    """Mean distance of the step's rollouts from the requested length in tokens; None if no length is requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """Throughput of one stage of the pipeline over the whole run."""

    name: str
    amount: str
    """Processed amount with its unit."""
    rate: str
    """Amount per second."""
    idle: float
    """Share of the run in which the stage had no work."""
    predicted_idle: float | None = None
    """Idle share that the mean times of all stages predict; None if the stage has no prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedVerdicts:
    """Number of files with one outcome and reason, from honest nodes and from cheating nodes."""

    outcome: Outcome
    reason: str
    honest: int
    cheating: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccount:
    """Results of a node's work, and the stake and rewards of its provider."""

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
    """Reason of the eviction; empty if the node is still a member."""
    batch_idle: float | None = None
    """Share of the time in which the engine computed no answer; None if the node reported none."""
    batch_under_half: float | None = None
    """Share of the time in which less than half of the rows of the engine's batch had an answer."""

    @property
    def unjudged(self) -> int:
        """Number of files that expired, or were open when the run ended."""
        return self.expired + self.open

    @property
    def files(self) -> int:
        """Number of files that the node submitted."""
        return self.accepted + self.rejected + self.forged + self.expired + self.open


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheck:
    """A check that a file failed, with its first finding, as the validator's audit file has them."""

    name: str
    found: int
    """Number of findings."""
    what: str
    """First finding in words, with the measured value and the limit."""
    row: int | None = None
    group: int | None = None
    sample: int | None = None
    position: int | None = None
    """Index of the output token in question, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """First verdict against a cheating node, and the checks that led to it."""

    node: str
    cheat: str
    key: str
    step: int
    index: int
    outcome: Outcome
    reason: str
    why: str
    """Meaning of the reason code in one sentence."""
    words: str = ""
    """The validator's own sentence; empty if the audit file is missing."""
    seconds: float | None = None
    """Time from the upload of the file to the verdict."""
    checks: tuple[FailedCheck, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSample:
    """A rollout of a step, drawn with the run's temperature."""

    step: int
    version: int
    prompt: str
    answer: str
    reward: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency of one path through the system: median and 99th percentile in seconds."""

    name: str
    count: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One part of a rollout file's path; begins when the previous part ends."""

    name: str
    begin: float
    end: float
    kind: str = "wait"
    """One of `KINDS`."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """Path of one rollout file through the system; times are seconds since the file's lease."""

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
"""Kinds of spans and legs; the HTML page has one colour for each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """Activity of one component in the shown time window."""

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
    """Report on a whole run."""

    about: Mapping[str, str]
    """Parameters of the run by name, such as task, seed and runtime."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Versions and hardware by name."""
    finished_ms: int = 0
    """End of the run, Unix time in milliseconds."""
    wall_seconds: float
    """Seconds from this start of the devnet to the end of the run."""
    steps: tuple[ReportedStep, ...]
    steps_before: int = 0
    """Number of the steps that were learned before this start of the devnet (`--keep`)."""
    evaluations: tuple[ReportedEvaluation, ...]
    stages: tuple[PipelineStage, ...]
    verdicts: tuple[ReportedVerdicts, ...]
    nodes: tuple[NodeAccount, ...]
    catches: tuple[Catch, ...] = ()
    samples: tuple[ReportedSample, ...] = ()
    """Rollouts of the first and of the last step whose samples the trainer sent."""
    latencies: tuple[Latency, ...]
    journey: Journey | None
    timeline: tuple[TimelineRow, ...]
    processes: tuple[ProcessCost, ...]

    @property
    def greedy(self) -> tuple[float, float] | None:
        """Held-out greedy accuracy before and after; None if it was not measured twice."""
        if len(self.evaluations) < 2:
            return None
        return self.evaluations[0].greedy, self.evaluations[-1].greedy

    @property
    def answer_pairs(self) -> tuple[tuple[ReportedAnswer, ReportedAnswer], ...]:
        """Answers to the same held-out prompts in the first and the last evaluation.

        Empty if there are fewer than two evaluations.
        """
        if len(self.evaluations) < 2:
            return ()
        after = {one.prompt: one for one in self.evaluations[-1].answers}
        return tuple((one, after[one.prompt]) for one in self.evaluations[0].answers if one.prompt in after)

    @property
    def distance(self) -> tuple[float, float] | None:
        """First and last mean distance of held-out answers from the requested length.

        None if fewer than two evaluations measured the distance.
        """
        known = [one.distance for one in self.evaluations if one.distance is not None]
        return (known[0], known[-1]) if len(known) > 1 else None

    @property
    def staleness(self) -> dict[int, int]:
        """Number of learned groups by staleness."""
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
        """Nodes that did not cheat."""
        return tuple(node for node in self.nodes if not node.cheat)


@dataclass(frozen=True, slots=True)
class Criterion:
    """A requirement of a good run, whether the run met it, and the run's result as text."""

    name: str
    met: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """A worker of the devnet with its provider."""

    name: str
    node: Address
    provider: Address
    cheat: str = ""
    stake_before: int = 0
    stake_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything observed of a run; times are Unix times in seconds.

    Args:
        about: Parameters of the run.
        began: Start of the devnet.
        ended: End of the run.
        contributors: All workers.
        events: Ledger events in chain order.
        blocks: Time at which the recorder first saw each block, by block number.
        progress: Lines of the trainer's `progress.jsonl`.
        rollouts: Files that the orchestrator lists, with any outcome.
        leases: Leases of each node, by node address.
        stored: Arrival time of each object in the store, by SHA-256.
        arrivals: Time at which each node had a complete version, by version digest and node name.
        steps_under_way: Number of steps that may be in progress at a time.
        processes: Resource use of the processes.
        metrics: Metrics of each node's last heartbeat, by node address.
        machine: Versions and hardware of this machine.
        audits: Audit files of verdicts against cheating nodes, by work key.
        samples: Sampled rollouts of steps, as the trainer sent them to the orchestrator.
    """

    about: Mapping[str, str]
    began: float
    ended: float
    contributors: Sequence[Contributor]
    events: Sequence[LedgerEvent] = ()
    blocks: Mapping[int, float] = field(default_factory=dict)
    progress: Sequence[Mapping[str, Any]] = ()
    rollouts: Sequence[RolloutItem] = ()
    leases: Mapping[Address, Sequence[LeaseView]] = field(default_factory=dict)
    metrics: Mapping[Address, Mapping[str, float]] = field(default_factory=dict)
    stored: Mapping[Digest, float] = field(default_factory=dict)
    arrivals: Mapping[Digest, Mapping[str, float]] = field(default_factory=dict)
    steps_under_way: int = 1
    processes: Sequence[ProcessCost] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    audits: Mapping[Digest, AuditFile] = field(default_factory=dict)
    samples: Sequence[RunSamples] = ()
