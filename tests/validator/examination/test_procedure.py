"""A whole examination: what is concluded, what is said, what is left out, and what nobody is blamed for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.identifiers import Digest, digest
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditFile, CheckState
from rollouts.checks import CheckedVersion
from rollouts.engines.interface import Dtype
from rollouts.samples import RolloutFile
from rollouts.sandbox import Sandboxes
from rollouts.schema import ReadLimits
from tests.rollouts.checks.test_cheats import changed_weights
from tests.rollouts.made import BEACON, facts_of, make, with_row, with_rows
from tests.validator.examination.conftest import OTHER_BEACON, Bench, facts, procedure_of, without_lease
from validator.audit.draw import draw_rows
from validator.examination.interface import NotJudged, RowDraw
from validator.examination.reading import LimitedReader
from validator.examination.shelf import Shelf
from validator.submissions import WorkFacts


def test_an_honest_file_is_accepted_with_every_check_and_row_on_record(bench: Bench, honest: RolloutFile) -> None:
    found = bench.conclude(honest)
    assert (found.outcome, found.reason, found.beacon_block) == (Outcome.ACCEPTED, ReasonCode.PASSED, 3)
    assert {check.state for check in found.checks} == {CheckState.PASSED}
    assert [check.name for check in found.checks] == [
        "format", "identity", "bounds", "termination", "seeds", "reward", "computation", "sampling", "logprobs",
    ]  # fmt: skip
    assert [row.reward for row in found.rows] == [sample.reward for sample in honest.samples]
    assert found.audited == tuple(range(len(honest.samples)))
    assert all(row.audited and row.figures for row in found.rows)
    assert found.timings is not None
    assert found.timings.prefilled_tokens == honest.units
    assert bench.asked == [found.fingerprint]


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_an_honest_file_of_any_batch_shape_is_accepted(batch: int, bench: Bench, version: CheckedVersion) -> None:
    beacon = digest(bytes([batch]) * 32)
    file = make(version, facts=replace(facts_of(version), beacon=beacon), batch=batch)
    found = bench.conclude(file, change=lambda told: replace(told, beacons=((3, beacon),)))
    assert found.outcome is Outcome.ACCEPTED, found.words


def test_a_pool_that_takes_one_arithmetic_does_not_pay_another_and_slashes_nobody_for_it(
    bench: Bench, honest: RolloutFile, reader: LimitedReader, shelf: Shelf
) -> None:
    bench.procedure = procedure_of(reader, shelf, takes=frozenset({"vllm/float32"}))
    found = bench.conclude(honest)
    assert (found.outcome, found.reason) == (Outcome.REJECTED, ReasonCode.BOUNDS_ARITHMETIC)
    assert found.audited == ()
    bench.procedure = procedure_of(reader, shelf, takes=frozenset({"vllm/float32", "torch/float32"}))
    assert bench.conclude(honest).outcome is Outcome.ACCEPTED


def test_drawn_rows_alone_are_computed_again_if_nothing_is_suspicious(bench: Bench, honest: RolloutFile) -> None:
    draw = RowDraw(seed=b"\1" * 32, share=0.25)
    found = bench.conclude(honest, draw=draw)
    assert found.outcome is Outcome.ACCEPTED
    assert found.audited == draw_rows(draw, len(honest.samples))
    assert [row.row for row in found.rows if row.audited] == list(found.audited)
    assert all(row.task is not None for row in found.rows)


def test_a_failure_in_drawn_rows_has_all_rows_computed_before_anything_is_concluded(
    bench: Bench, version: CheckedVersion, tmp_path: Path
) -> None:
    file = make(version, facts=facts_of(version), weights=changed_weights(tmp_path, "int8"))
    found = bench.conclude(file, draw=RowDraw(seed=b"\1" * 32, share=0.25))
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.COMPUTATION_OTHER_MODEL)
    assert found.audited == tuple(range(len(file.samples)))
    assert "another prefill says the same" in found.words
    figures = {check.name: check.figures for check in found.checks}["computation"]
    assert (figures["beyond_margin"], figures["again.beyond_margin"]) == (True, True)


def test_a_copy_has_all_rows_computed_and_passes_if_its_own_seed_drew_it(bench: Bench, honest: RolloutFile) -> None:
    found = bench.conclude(honest, draw=RowDraw(seed=b"\1" * 32, share=0.25), copy=True)
    assert found.outcome is Outcome.ACCEPTED
    assert len(found.audited) == len(honest.samples)


def test_a_copy_that_its_seed_did_not_draw_is_forged_and_called_a_copy(bench: Bench, version: CheckedVersion) -> None:
    file = make(version, facts=facts_of(version), seed=b"\5" * 32)
    found = bench.conclude(file, copy=True)
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.SAMPLING_REPLAY)
    assert "IDENTITY_COPY" in found.words


Change = Callable[[RolloutFile], RolloutFile]
EXACT: dict[str, tuple[Change, ReasonCode, str]] = {
    "another step": (
        lambda file: RolloutFile(replace(file.header, step=99), file.samples),
        ReasonCode.IDENTITY_OTHER_WORK,
        "identity",
    ),
    "a probability above one": (
        lambda file: with_row(file, 0, replace(file.samples[0], logprobs=np.full_like(file.samples[0].logprobs, 1))),
        ReasonCode.BOUNDS_LOG_PROBABILITY,
        "bounds",
    ),
    "a group left out": (
        lambda file: with_rows(file, file.samples[:-4]),
        ReasonCode.SEED_GROUPS,
        "seeds",
    ),
    "rewards": (
        lambda file: with_row(
            file, 1, replace(file.samples[1], task_reward=1.0, reward=1.0 - file.samples[1].length_penalty)
        ),
        ReasonCode.REWARD_DIFFERS,
        "reward",
    ),
    "a proof left out": (
        lambda file: with_row(file, 11, replace(file.samples[11], proofs=file.samples[11].proofs[:-258])),
        ReasonCode.COMPUTATION_PROOF_MALFORMED,
        "computation",
    ),
}


@pytest.mark.parametrize(("change", "reason", "check"), EXACT.values(), ids=EXACT)
def test_an_exact_failure_is_forgery_and_ends_the_examination(
    change: Change, reason: ReasonCode, check: str, bench: Bench, honest: RolloutFile
) -> None:
    found = bench.conclude(change(honest), draw=RowDraw(seed=b"\1" * 32, share=0.01))
    assert (found.outcome, found.reason) == (Outcome.FORGED, reason)
    states = {one.name: one.state for one in found.checks}
    names = [*states]
    assert states[check] is CheckState.FAILED
    assert {states[name] for name in names[: names.index(check)]} == {CheckState.PASSED}
    later = [name for name in names[names.index(check) + 1 :] if check != "computation"]
    assert all(states[name] is CheckState.SKIPPED for name in later)
    scored = check in {"reward", "computation"}
    assert all((row.reward is not None) is scored for row in found.rows)
    assert bool(bench.asked) is (check in {"reward", "computation"})  # copies are asked for when seeds are right


def test_of_several_possible_beacons_the_one_that_draws_the_file_counts(bench: Bench, honest: RolloutFile) -> None:
    found = bench.conclude(honest, change=lambda told: replace(told, beacons=((8, OTHER_BEACON), (4, BEACON))))
    assert (found.outcome, found.beacon_block) == (Outcome.ACCEPTED, 4)
    found = bench.conclude(honest, change=lambda told: replace(told, beacons=((8, OTHER_BEACON),)))
    assert (found.outcome, found.reason, found.beacon_block) == (Outcome.FORGED, ReasonCode.SEED_PROMPTS, None)


def test_a_beacon_that_the_orchestrator_does_not_name_is_not_paid_and_slashes_nobody(
    bench: Bench, honest: RolloutFile
) -> None:
    def told(*beacons: tuple[int, Digest]) -> Callable[[WorkFacts], WorkFacts]:
        return lambda facts: replace(facts, beacons=beacons, named=True)

    found = bench.conclude(honest, change=told((8, OTHER_BEACON), (4, BEACON)))
    assert (found.outcome, found.reason, found.beacon_block) == (Outcome.REJECTED, ReasonCode.SEED_PROMPTS, 4)
    assert next(one for one in found.checks if one.name == "seeds").state is CheckState.FAILED
    assert "only the orchestrator's word" in found.words
    found = bench.conclude(honest, change=told((4, BEACON), (8, OTHER_BEACON)))
    assert (found.outcome, found.beacon_block) == (Outcome.ACCEPTED, 4)
    elsewhere = digest(b"\2" * 32)
    found = bench.conclude(honest, change=told((8, OTHER_BEACON), (4, elsewhere)))
    assert found.outcome is Outcome.FORGED, "no joining of the node draws it"


def test_between_limits_and_margin_work_is_not_paid_and_costs_nothing_more(bench: Bench, honest: RolloutFile) -> None:
    off = honest.samples[0].logprobs.copy()
    off[0] -= 0.002  # the limit is 0.001, and the margin four times that
    found = bench.conclude(with_row(honest, 0, replace(honest.samples[0], logprobs=off)))
    assert (found.outcome, found.reason) == (Outcome.REJECTED, ReasonCode.LOG_PROBABILITIES_UNCONFIRMED)
    off[0] -= 0.006
    found = bench.conclude(with_row(honest, 0, replace(honest.samples[0], logprobs=off)))
    assert (found.outcome, found.reason) == (Outcome.FORGED, ReasonCode.LOG_PROBABILITIES_DIFFER)


NOT_JUDGED: dict[str, tuple[Callable[[RolloutFile], RolloutFile], str, bool]] = {
    "a pair that nobody calibrated": (
        lambda file: RolloutFile(replace(file.header, dtype=Dtype.BFLOAT16), file.samples),
        "no-calibration",
        False,
    ),
    "another build of the environment": (
        lambda file: RolloutFile(replace(file.header, environment_version="1+elsewhere"), file.samples),
        "environment-differs",
        False,
    ),
}


@pytest.mark.parametrize(("change", "code", "retryable"), NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_what_this_validator_can_t_know_is_nobody_s_guilt(
    change: Callable[[RolloutFile], RolloutFile], code: str, *, retryable: bool, bench: Bench, honest: RolloutFile
) -> None:
    found = bench.examine(change(honest))
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == (code, retryable)
    assert found.hint


def test_work_without_a_lease_is_never_accepted_and_forged_if_it_says_so_itself(
    bench: Bench, honest: RolloutFile
) -> None:
    found = bench.examine(honest, change=without_lease)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("no-lease", False)
    lied = RolloutFile(replace(honest.header, step=99), honest.samples)
    assert bench.conclude(lied, change=without_lease).outcome is Outcome.FORGED


def test_work_without_a_lease_that_is_too_large_for_this_machine_is_not_forged_by_that(
    bench: Bench, honest: RolloutFile, sandboxes: Sandboxes, shelf: Shelf
) -> None:
    small = ReadLimits(rows=len(honest.samples) - 1)
    bench.procedure = procedure_of(LimitedReader(sandboxes, most=small), shelf, most=small)
    found = bench.examine(honest, change=without_lease)
    assert isinstance(found, NotJudged), found
    assert found.code == "too-large-here"


def test_weights_beyond_the_budget_and_broken_folders_are_ours(
    bench: Bench, version: CheckedVersion, reader: LimitedReader, honest: RolloutFile, tmp_path: Path
) -> None:
    bench.procedure = procedure_of(reader, Shelf(torch.device("cpu"), budget=1000))
    found = bench.examine(honest)
    assert isinstance(found, NotJudged)
    assert (found.code, found.retryable) == ("out-of-memory", True)
    (tmp_path / "empty").mkdir()
    bench.version = replace(version, folder=tmp_path / "empty")
    found = bench.examine(honest)
    assert isinstance(found, NotJudged)
    assert found.code == "bad-version-folder"


def test_a_row_whose_score_changes_is_excused_and_not_learned_from(
    bench: Bench, honest: RolloutFile, version: CheckedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, calls = type(version.planner), []
    real = planner.reward

    def by_chance(self: object, *args: object) -> object:
        calls.append(1)
        reward = real(self, *args)  # type: ignore[arg-type]  # as it was called
        return replace(reward, task=1.0 - reward.task) if len(calls) == 1 else reward

    monkeypatch.setattr(planner, "reward", by_chance)
    found = bench.conclude(honest)
    assert found.outcome is Outcome.ACCEPTED, found.words
    assert [row.task for row in found.rows[:2]] == [None, honest.samples[1].task_reward]
    assert found.rows[0].reward is None


@pytest.mark.parametrize(("limited", "outcome"), [(True, Outcome.ACCEPTED), (False, Outcome.FORGED)])
def test_a_slow_machine_may_have_found_less_where_checks_have_limits(
    bench: Bench,
    honest: RolloutFile,
    version: CheckedVersion,
    monkeypatch: pytest.MonkeyPatch,
    *,
    limited: bool,
    outcome: Outcome,
) -> None:
    real = type(version.planner).reward

    def solved(self: object, *args: object) -> object:
        reward = real(self, *args)  # type: ignore[arg-type]  # as it was called
        return replace(reward, task=1.0, total=1.0 - reward.length_penalty, limited=limited)

    assert {sample.task_reward for sample in honest.samples} == {0.0}
    monkeypatch.setattr(type(version.planner), "reward", solved)
    found = bench.conclude(honest)
    assert found.outcome is outcome, found.words
    assert {row.task for row in found.rows} == {1.0}


def test_a_conclusion_fits_an_audit_file_to_the_last_figure(bench: Bench, honest: RolloutFile) -> None:
    found, told = bench.conclude(honest), facts(bench.version, honest, path=bench.folder / "file.parquet").work
    written = AuditFile(
        pool_id=1, key=told.key, validator=told.node, judged_at_ms=1, muster="1", outcome=found.outcome,
        reason=int(found.reason), words=found.words, node=told.node, run=told.run, step=told.step, index=told.index,
        version=told.version, checkpoint=told.checkpoint, sha256=told.sha256, units=told.units,
        submitted_block=told.block, beacon_block=found.beacon_block, checks=found.checks, rows=found.rows,
        limits=found.limits,
    )  # fmt: skip
    assert AuditFile.decode(written.encode()).rows == found.rows
