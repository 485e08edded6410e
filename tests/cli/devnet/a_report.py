"""A sample report of a devnet run, for tests of its output."""

from __future__ import annotations

import math
from dataclasses import replace

from cli.devnet.report.data import (
    Catch,
    FailedCheck,
    Journey,
    Latency,
    Leg,
    NodeAccount,
    PipelineStage,
    ProcessCost,
    ReportedAnswer,
    ReportedEvaluation,
    ReportedSample,
    ReportedStep,
    ReportedVerdicts,
    RunReport,
    TimelineRow,
    TimeSpan,
)
from ledger.amounts import UNIT
from protocol.verdicts import Outcome


def node(name: str, *, accepted: int, forged: int = 0, cheat: str = "", evicted: str = "") -> NodeAccount:
    """Returns a node with a stake of 100, of which each forgery costs 40."""
    return NodeAccount(
        name=name,
        address="0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        cheat=cheat,
        accepted=accepted,
        forged=forged,
        tokens=accepted * 420,
        stake_before=100 * UNIT,
        stake_after=max(0, 100 - 40 * forged) * UNIT,
        earned=accepted * UNIT // 25,
        slashed=min(100, 40 * forged) * UNIT,
        evicted=evicted,
    )


def with_lengths(report: RunReport) -> RunReport:
    """Returns the same report of a run with target lengths: the distance falls from 2.4 tokens to 0.4."""
    last = max(1, len(report.steps))

    def off(step: int) -> float:
        return 2.4 - 2.0 * step / last

    return replace(
        report,
        steps=tuple(replace(step, distance=off(step.step)) for step in report.steps),
        evaluations=tuple(
            replace(one, distance=off(one.version), lengths={1: 1 + off(one.version), 7: 7 - off(one.version)})
            for one in report.evaluations
        ),
    )


def a_report(steps: int = 90) -> RunReport:
    """Returns a report of ninety steps with three honest workers and one attacker."""
    learned = [
        ReportedStep(
            step=step,
            at=2.0 + step * 1.6,
            reward=0.3 + 0.58 * (1 - math.exp(-step / 30)) + 0.05 * math.sin(step * 1.7),
            staleness={0: 3, 1: 9, 2: 4},
        )
        for step in range(steps)
    ]
    evaluations = [
        ReportedEvaluation(
            version=version,
            greedy=0.94 - 0.51 * math.exp(-version / 28),
            pass_at_1=0.88 - 0.59 * math.exp(-version / 32),
            answers=(
                ReportedAnswer(prompt="rev:kzpw=", answer="wpzk" if version else "kzpw", correct=version > 0),
                ReportedAnswer(prompt="sort:5203=", answer="5203", correct=False),
            ),
        )
        for version in range(0, steps + 1, 15)
    ]
    lanes = [
        TimelineRow(
            name=f"worker-{worker}",
            spans=tuple(
                TimeSpan(begin=40 + worker * 0.2 + n * 0.9, end=40.35 + worker * 0.2 + n * 0.9, kind="generate")
                for n in range(11)
            ),
        )
        for worker in (1, 2, 3)
    ]
    lanes += [
        TimelineRow(
            name="validator",
            spans=tuple(TimeSpan(begin=40.4 + n * 0.5, end=40.8 + n * 0.5, kind="verify") for n in range(19)),
        ),
        TimelineRow(
            name="trainer",
            spans=tuple(
                span
                for n in range(6)
                for span in (
                    TimeSpan(begin=40 + n * 1.6, end=41.1 + n * 1.6, kind="wait"),
                    TimeSpan(begin=41.1 + n * 1.6, end=41.5 + n * 1.6, kind="learn", label=f"step {n}"),
                )
            ),
        ),
        TimelineRow(
            name="shardcast",
            spans=tuple(TimeSpan(begin=41.6 + n * 1.6, end=42.1 + n * 1.6, kind="broadcast") for n in range(5)),
        ),
    ]
    return RunReport(
        about={
            "task": "instruction following by reward",
            "seed": "1",
            "workers": "3 and a cheat",
            "runtime": "process",
        },
        wall_seconds=187.0,
        steps=tuple(learned),
        evaluations=tuple(evaluations),
        stages=(
            PipelineStage(
                name="generation", amount="143,000 tokens", rate="1,010 tokens/s", idle=0.62, predicted_idle=0.58
            ),
            PipelineStage(name="verification", amount="612 files", rate="4.3 files/s", idle=0.71),
            PipelineStage(name="learning", amount=f"{steps} steps", rate="0.6 steps/s", idle=0.55, predicted_idle=0.5),
            PipelineStage(name="broadcast", amount=f"{steps} versions, 158 MB", rate="1.1 MB/s", idle=0.8),
        ),
        verdicts=(
            ReportedVerdicts(outcome=Outcome.ACCEPTED, reason="passed", honest=606, cheating=4),
            ReportedVerdicts(outcome=Outcome.FORGED, reason="computation-other-model", honest=0, cheating=2),
        ),
        nodes=(
            node("worker-1", accepted=210),
            node("worker-2", accepted=199),
            node("worker-3", accepted=197),
            node("cheater", accepted=4, forged=2, cheat="previous-checkpoint", evicted="forged work"),
        ),
        catches=(
            Catch(
                node="cheater",
                cheat="previous-checkpoint",
                key="0x" + "ab" * 32,
                step=7,
                index=2,
                outcome=Outcome.FORGED,
                reason="computation-other-model",
                why="The proofs are of another model.",
                words="64 of 64 proofs are beyond the limits",
                seconds=1.25,
                checks=(
                    FailedCheck(
                        name="computation",
                        found=297,
                        what="proof 0 is off by 3.95; the limit is 0.06",
                        row=5,
                        position=0,
                    ),
                    FailedCheck(name="sampling", found=1, what="2 of 384 tokens are not those that the seed draws"),
                ),
            ),
        ),
        samples=(
            ReportedSample(step=0, version=0, prompt="rev:ab=", answer="ab", reward=0.0, tokens=3),
            ReportedSample(step=steps - 1, version=steps - 2, prompt="rev:cd=", answer="dc", reward=1.0, tokens=3),
        ),
        machine={"Muster": "0.1.0", "Python": "3.11.2", "processor": "A processor (x86_64)", "cores": "2"},
        finished_ms=1_800_000_000_000,
        latencies=(
            Latency(name="upload to provisional verdict", count=612, p50=0.91, p99=1.73),
            Latency(name="upload to the ledger", count=612, p50=0.42, p99=0.8),
        ),
        journey=Journey(
            node="worker-2",
            step=41,
            index=3,
            legs=(
                Leg(name="generated", begin=0.0, end=0.12, kind="generate", note="64 samples"),
                Leg(name="uploaded", begin=0.12, end=0.21),
                Leg(name="on the ledger", begin=0.21, end=0.63),
                Leg(name="verdict", begin=0.63, end=1.12, kind="verify"),
                Leg(name="learned", begin=1.12, end=2.3, kind="learn"),
                Leg(name="announced", begin=2.3, end=2.71),
                Leg(name="on every node", begin=2.71, end=3.05, kind="broadcast"),
            ),
        ),
        timeline=tuple(lanes),
        processes=(
            ProcessCost(name="trainer", cpu_seconds=41.2, memory_mib=420),
            ProcessCost(name="chain", cpu_seconds=22.0, memory_mib=90),
        ),
    )
