"""The spread of a verifier's own passes over a row, and limits that follow it where it is larger than they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rollouts.calibration.limits import float32_limits
from rollouts.checks import CheckedVersion, CheckInput, CheckOutcome, Draws, RowEvidence, RowSpread, SlotFacts, gather
from rollouts.checks.logprobs import CHECK as LOGPROBS
from rollouts.checks.sampling import CHECK as SAMPLING
from rollouts.files.samples import RolloutFile
from rollouts.models.policy import Policy
from rollouts.sampling.replay import Gaps
from rollouts.toploc import ProofResult

LIMITS = float32_limits(("tiny",))


def evidence(logprobs: list[float], *, gap: float = 0.0, distance: int = 0) -> RowEvidence:
    own = np.array(logprobs, np.float32)
    zeros = np.zeros_like(own)
    gaps = Gaps(
        gaps=np.full_like(own, gap), outside=zeros, mismatches=zeros > 0, logprobs=own, excess=zeros, variance=zeros
    )
    proof = ProofResult(None, 128, 0, 0, 0, 0.0, distance)
    return RowEvidence(proofs=(proof,), logprobs=own, gaps=gaps)


def test_the_spread_is_the_largest_difference_from_the_first_pass() -> None:
    first = evidence([-1.0, -2.0], gap=0.5)
    found = RowSpread.between(first, [evidence([-1.5, -2.0], gap=0.25), evidence([-1.0, -1.75], gap=0.5, distance=64)])
    assert found.logprobs.tolist() == [0.5, 0.25]
    assert found.deviations.tolist() == [0.25, 0.25]
    assert (found.distance, found.distance_worst) == (0.5, 0.5)
    assert RowSpread.between(first, []).logprobs.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("own", "state"),
    [(0.0, CheckOutcome.FAILED), (0.002, CheckOutcome.FAILED), (0.003, CheckOutcome.PASSED)],
    ids=["none", "less", "more"],
)
def test_a_row_may_deviate_by_a_multiple_of_the_verifiers_own_spread(
    own: float, state: CheckOutcome, version: CheckedVersion, facts: SlotFacts, honest: RolloutFile
) -> None:
    sample = honest.samples[0]
    off = sample.logprobs.astype(np.float64)
    off[3] += 0.02
    length = len(off)
    spread = RowSpread(
        logprobs=np.full(length, own, np.float32), deviations=np.zeros(length, np.float32), distance=0, distance_worst=0
    )
    found = replace(evidence(off.tolist()), proofs=())
    case = CheckInput(
        file=honest, facts=facts, version=version, limits=LIMITS, evidence={0: found}, spread={0: spread},
        spread_factor=8.0,
    )  # fmt: skip
    result = LOGPROBS.judge(case)
    assert result.figures["own_largest"] == pytest.approx(own)
    if own:
        assert result.state is state
        assert not result.broad, "one token"
    else:
        assert (result.state, result.broad) == (CheckOutcome.FAILED, True), "also on average, without a spread"


def test_the_replays_limits_follow_the_spread(version: CheckedVersion, facts: SlotFacts, honest: RolloutFile) -> None:
    length = len(honest.samples[0].output_tokens)
    gaps = np.zeros(length, np.float32)
    gaps[2] = 0.0076
    one = evidence(honest.samples[0].logprobs.tolist())
    assert one.gaps is not None
    one = replace(one, gaps=replace(one.gaps, gaps=gaps))
    spread = RowSpread(
        logprobs=np.full(length, 0.001, np.float32), deviations=np.zeros(length, np.float32), distance=0,
        distance_worst=0,
    )  # fmt: skip
    case = CheckInput(file=honest, facts=facts, version=version, limits=LIMITS, evidence={0: one}, spread_factor=8.0)
    assert SAMPLING.judge(case).state is CheckOutcome.FAILED
    assert SAMPLING.judge(replace(case, spread={0: spread})).state is CheckOutcome.PASSED


def test_arithmetic_of_other_kernels_differs_by_rounding_and_ends_with_its_context(
    policy: Policy, honest: RolloutFile, facts: SlotFacts, version: CheckedVersion
) -> None:
    def computed() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        draws = Draws(seed=facts.seed, parameters=version.recipe.sampling.parameters)
        return gather(policy, honest, dict.fromkeys([0, 5], draws))[5].logprobs

    before = computed()
    with policy.other_arithmetic(noise_seed=1):
        noisy = computed()
    with policy.other_arithmetic(noise_seed=1):
        assert np.array_equal(computed(), noisy), "the noise is determined by its seed"
    with policy.other_arithmetic(noise_seed=2):
        assert not np.array_equal(computed(), noisy)
    assert 0 < np.abs(noisy - before).max() < 1e-3
    assert np.array_equal(computed(), before)
    assert torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]  # torch has no annotation for it
