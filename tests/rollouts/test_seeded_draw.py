"""Tests draws that compute the noise of a few candidates only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollouts.sampling import seeded_draw
from rollouts.sampling.noise import Keys, noise, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import NotANumber, draw
from rollouts.sampling.seeded_draw import LEAST_LOGITS, LEAST_VOCABULARY, draw_seeded

PLAIN = SamplingParameters(max_new_tokens=1)


def keys_of(rows: int, *, seed: int = 1) -> Keys:
    return row_keys([stream(seed.to_bytes(32, "big"), sample) for sample in range(rows)], range(rows))


def assert_same(logits: torch.Tensor, keys: Keys, parameters: SamplingParameters = PLAIN) -> None:
    expected = draw(logits, noise(keys, logits.shape[1]), parameters)
    drawn = draw_seeded(logits, keys, parameters)
    assert torch.equal(drawn.tokens, expected.tokens)
    assert torch.equal(drawn.logprobs, expected.logprobs)


@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 6),
    vocabulary=st.integers(LEAST_VOCABULARY, 3 * LEAST_VOCABULARY),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 4.0, 30.0, 1e4]),
    shift=st.sampled_from([0.0, -500.0, 3e4, 1e6]),
    temperature=st.sampled_from([1.0, 0.3, 2.0]),
)
def test_candidates_give_the_same_draw_as_all_noise(
    seed: int, rows: int, vocabulary: int, spread: float, shift: float, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=generator) * spread + shift
    logits[0, : vocabulary // 2] = -torch.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeded_draw, "LEAST_LOGITS", 0)
        parameters = SamplingParameters(max_new_tokens=1, temperature=temperature)
        assert_same(logits, keys_of(rows, seed=seed), parameters)


@pytest.mark.parametrize("below", [-5.0, 0.0], ids=["below-every-score", "above-most-scores"])
def test_rows_without_a_candidate_above_the_floor_fall_back_to_all_noise(
    below: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeded_draw, "_BELOW_LOG_SUM", below)  # the floor is far above, or at, the log-sum
    rows, vocabulary = 40, LEAST_VOCABULARY
    assert_same(torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(3)), keys_of(rows))


def test_small_batches_masks_and_half_precision_give_the_same_draw_too() -> None:
    rows = -(-LEAST_LOGITS // 5000)
    logits = torch.randn(rows, 5000, generator=torch.Generator().manual_seed(4)) * 2
    keys = keys_of(rows)
    assert_same(logits, keys)
    assert_same(logits[:1], keys[:1])
    assert_same(logits.bfloat16(), keys)
    assert_same(logits, keys, SamplingParameters(max_new_tokens=1, top_k=50, top_p=0.9))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_an_error(broken: float) -> None:
    logits = torch.zeros(-(-LEAST_LOGITS // 5000), 5000)
    logits[1, 7] = broken
    with pytest.raises(NotANumber):
        draw_seeded(logits, keys_of(len(logits)), PLAIN)
