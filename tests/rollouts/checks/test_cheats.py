"""Other computation than the version's and other draws than the seed's are found by proofs or by replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocol.verdicts import ReasonCode
from rollouts.calibration.limits import float32_limits
from rollouts.calibration.noise_model import HonestNoise
from rollouts.checks import PREFILL_CHECKS, CheckedVersion, CheckInput, CheckOutcome, RowEvidence, SlotFacts
from rollouts.checks.check import Check
from rollouts.checks.computation import CHECK as COMPUTATION
from rollouts.checks.result import CheckResult
from rollouts.checks.sampling import CHECK as SAMPLING
from rollouts.files.samples import RolloutFile
from rollouts.models.policy import Policy
from rollouts.precision import Arithmetic, Dtype
from rollouts.recompute.torch_recomputer import TorchRecomputer
from rollouts.sampling.replay import Gaps
from rollouts.toploc import ProofResult
from rollouts.verify.files import run_check, with_evidence
from tests.kit.rollout_files import (
    RECIPE,
    changed_weights,
    make,
)


def judged(file: RolloutFile, facts: SlotFacts, version: CheckedVersion, policy: Policy) -> dict[str, CheckResult]:
    case = CheckInput(file=file, facts=facts, version=version, limits=float32_limits(("tiny",)))
    case = with_evidence(case, TorchRecomputer(policy, made_in=Dtype.FLOAT32))
    return {check.name: run_check(check, case) for check in PREFILL_CHECKS}


@pytest.mark.parametrize("kind", ["older", "int8"])
def test_other_weights_are_detected_by_the_proofs(
    kind: str, tmp_path: Path, version: CheckedVersion, facts: SlotFacts, policy: Policy
) -> None:
    file = make(version, facts=facts, weights=changed_weights(tmp_path, kind))
    result = judged(file, facts, version, policy)["computation"]
    assert result.state is CheckOutcome.FAILED
    assert {one.reason for one in result.findings} == {ReasonCode.COMPUTATION_OTHER_MODEL}


OTHER_SAMPLING = {"temperature 0.8": {"temperature": 0.8}, "greedy": {"top_k": 1}, "top-p": {"top_p": 0.8}}


@pytest.mark.parametrize("changes", OTHER_SAMPLING.values(), ids=OTHER_SAMPLING)
def test_other_sampling_parameters_are_detected_by_the_replay(
    changes: dict[str, float], version: CheckedVersion, facts: SlotFacts, policy: Policy
) -> None:
    sampling = RECIPE.sampling.model_copy(update=changes)
    file = make(version, facts=facts, recipe=RECIPE.model_copy(update={"sampling": sampling}))
    results = judged(file, facts, version, policy)
    assert results["sampling"].state is CheckOutcome.FAILED
    assert results["computation"].state is CheckOutcome.PASSED


def test_other_noise_is_detected_by_the_replay(version: CheckedVersion, facts: SlotFacts, policy: Policy) -> None:
    results = judged(make(version, facts=facts, seed=b"\5" * 32), facts, version, policy)
    assert [name for name, one in results.items() if one.state is CheckOutcome.FAILED] == ["sampling"]


def test_greedy_answers_are_detected_as_too_probable_even_without_the_seed(
    version: CheckedVersion, facts: SlotFacts, policy: Policy, honest: RolloutFile
) -> None:
    blind = replace(facts, parts=None)
    assert judged(honest, blind, version, policy)["sampling"].state is CheckOutcome.UNKNOWN
    sampling = RECIPE.sampling.model_copy(update={"top_k": 1})
    file = make(version, facts=facts, recipe=RECIPE.model_copy(update={"sampling": sampling}))
    result = judged(file, blind, version, policy)["sampling"]
    assert (result.state, result.findings[0].reason) == (CheckOutcome.FAILED, ReasonCode.SAMPLING_DISTRIBUTION)
    assert "too probable" in result.findings[0].what


def test_bfloat16_declared_as_float32_fails_the_computation_check(
    version: CheckedVersion, facts: SlotFacts, policy: Policy
) -> None:
    file = make(version, facts=facts, dtype=Dtype.BFLOAT16)
    file = RolloutFile(replace(file.header, arithmetic=Arithmetic.parse("torch/float32")), file.samples)
    assert judged(file, facts, version, policy)["computation"].state is CheckOutcome.FAILED


def test_without_calibration_the_prefill_checks_measure_and_do_not_judge(
    version: CheckedVersion, facts: SlotFacts, policy: Policy, honest: RolloutFile
) -> None:
    case = with_evidence(
        CheckInput(file=honest, facts=facts, version=version), TorchRecomputer(policy, made_in=Dtype.FLOAT32)
    )
    for check in PREFILL_CHECKS:
        result = run_check(check, case)
        assert (result.state, bool(result.figures)) == (CheckOutcome.UNKNOWN, True)
        assert "calibrated" in result.note


@pytest.mark.parametrize(
    ("off", "state"), [(1, CheckOutcome.PASSED), (2, CheckOutcome.PASSED), (3, CheckOutcome.FAILED)]
)
def test_a_tie_for_the_last_place_of_a_proof_is_tolerated(
    off: int, state: CheckOutcome, version: CheckedVersion, facts: SlotFacts, honest: RolloutFile
) -> None:
    """The proof contains nothing about a value that the prover left out, so its distance is the largest possible."""
    swapped = ProofResult(None, 128, off, off, 0, 0.0, 128 * off + 2)
    evidence = {0: RowEvidence(proofs=(swapped,), logprobs=honest.samples[0].logprobs, gaps=None)}
    case = CheckInput(file=honest, facts=facts, version=version, limits=float32_limits(("tiny",)), evidence=evidence)
    assert run_check(COMPUTATION, case).state is state


def test_a_tie_shared_by_all_rows_is_not_another_model(
    version: CheckedVersion, facts: SlotFacts, honest: RolloutFile
) -> None:
    """Equal answers have equal states, and so the same tie in every row."""
    tied = ProofResult(None, 128, 2, 1, 1, 0.0, 2 * 128 + 1)
    evidence = {
        row: RowEvidence(proofs=(tied,), logprobs=sample.logprobs, gaps=None)
        for row, sample in enumerate(honest.samples)
    }
    case = CheckInput(file=honest, facts=facts, version=version, limits=float32_limits(("tiny",)), evidence=evidence)
    counted = [replace(one, proofs=bytes(258 * -(-len(one.output_tokens) // 32))) for one in honest.samples]
    case = replace(case, file=RolloutFile(honest.header, tuple(counted)))
    assert run_check(COMPUTATION, case).state is CheckOutcome.PASSED


SCATTER = HonestNoise(
    distance_mean=0.2, distance_shape=2.7, mismatch_rate=0.003, mismatch_size=0.05, groups=800, group_rows=4
)
"""Limits of a whole file: proofs at most 1.2 units off on average, deviations at most 0.9 in total."""


def as_measured(honest: RolloutFile, *, distance: float, deviation: float) -> dict[int, RowEvidence]:
    """Returns evidence in which every row is off: its proofs throughout, its draws at the first token."""
    found = {}
    for row, sample in enumerate(honest.samples):
        count = len(sample.output_tokens)
        zeros = np.zeros(count, np.float32)
        gaps = Gaps(
            gaps=np.where(np.arange(count) == 0, np.float32(deviation), zeros),
            outside=zeros,
            mismatches=np.arange(count) == 0,
            logprobs=sample.logprobs,
            excess=zeros,
            variance=zeros,
        )
        proofs = (ProofResult(None, 128, 0, 0, int(128 * distance), 0.0, int(128 * distance)),) * -(-count // 32)
        found[row] = RowEvidence(proofs=proofs, logprobs=sample.logprobs, gaps=gaps)
    return found


@pytest.mark.parametrize(
    ("check", "distance", "deviation"), [(COMPUTATION, 2.0, 0.0), (SAMPLING, 0.0, 0.2)], ids=["proofs", "draws"]
)
def test_a_file_with_acceptable_rows_can_fail_as_a_whole(
    check: Check, distance: float, deviation: float, version: CheckedVersion, facts: SlotFacts, honest: RolloutFile
) -> None:
    each = float32_limits(("tiny",)).widened(200)
    case = CheckInput(
        file=honest,
        facts=facts,
        version=version,
        limits=each,
        evidence=as_measured(honest, distance=distance, deviation=deviation),
    )
    assert run_check(check, case).state is CheckOutcome.PASSED
    whole = each.model_copy(update={"scatter": SCATTER})
    failed = run_check(check, replace(case, limits=whole))
    assert (failed.state, failed.found) == (CheckOutcome.FAILED, 1)
    assert failed.findings[0].row is None
    assert "the limit is" in failed.findings[0].what
    assert run_check(check, replace(case, limits=whole.widened(4))).state is CheckOutcome.PASSED, "within the margin"
    near = as_measured(honest, distance=distance / 4, deviation=deviation / 4)
    assert run_check(check, replace(case, limits=whole, evidence=near)).state is CheckOutcome.PASSED


def test_a_file_dominated_by_one_group_is_held_to_the_limit_for_fewer_groups(
    version: CheckedVersion, facts: SlotFacts, honest: RolloutFile
) -> None:
    eight = tuple(replace(one, group=row % 2) for row, one in enumerate((*honest.samples, *honest.samples)[:8]))
    two = replace(honest, samples=eight)
    limits = float32_limits(("tiny",)).widened(200).model_copy(update={"scatter": SCATTER})
    measured = as_measured(two, distance=1.0, deviation=0.0)
    case = CheckInput(file=two, facts=facts, version=version, limits=limits, evidence=measured)
    assert run_check(COMPUTATION, case).state is CheckOutcome.FAILED
    longer = {row: one if row % 2 else replace(one, proofs=one.proofs * 40) for row, one in measured.items()}
    assert run_check(COMPUTATION, replace(case, evidence=longer)).state is CheckOutcome.PASSED
