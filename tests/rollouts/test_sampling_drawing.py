"""Drawn tokens follow the softmax within the mask, and the recorded value is their own log-probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollouts.sampling.mask import mask_of
from rollouts.sampling.noise import noise, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import NotANumber, draw, first_largest, process, scale

SEED = b"\x2a" * 32
INFINITY = float("inf")


def parameters(*, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> SamplingParameters:
    return SamplingParameters(max_new_tokens=8, temperature=temperature, top_p=top_p, top_k=top_k)


def drawn_counts(logits: torch.Tensor, chosen: SamplingParameters, *, draws: int) -> torch.Tensor:
    """Counts draws of each token from the same logits, over samples and positions as in an engine."""
    streams = [stream(SEED, sample) for sample in range(draws // 50) for _ in range(50)]
    keys = row_keys(streams, [position for _ in range(draws // 50) for position in range(50)])
    tokens = draw(logits.expand(draws, -1), noise(keys, len(logits)), chosen).tokens
    return torch.bincount(tokens, minlength=len(logits))


def g_statistic(counts: torch.Tensor, shares: torch.Tensor) -> float:
    expected = shares.double() * counts.sum()
    seen = counts > 0
    return float(2 * (counts[seen] * (counts[seen] / expected[seen]).log()).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_draws_follow_the_softmax_distribution(temperature: float) -> None:
    """20,000 fixed draws of 16 tokens: with 15 degrees of freedom G exceeds 45 once in 13,000 fair experiments."""
    logits = torch.linspace(-2.0, 2.0, 16)[torch.randperm(16, generator=torch.Generator().manual_seed(1))]
    counts = drawn_counts(logits, parameters(temperature=temperature), draws=20_000)
    assert g_statistic(counts, torch.softmax(logits / temperature, 0)) < 45
    wrong = torch.softmax(logits / (temperature * 1.1), 0)
    assert g_statistic(counts, wrong) > 45, "the test can detect a temperature that is a tenth off"


def test_draws_within_a_mask_follow_the_renormalised_softmax() -> None:
    """20,000 fixed draws; 6 tokens are kept, so G has 5 degrees of freedom and exceeds 25 once in 7,000."""
    logits = torch.tensor([3.0, 2.5, -1.0, 2.0, 1.5, 1.0, 0.5, 0.0, -2.0])
    counts = drawn_counts(logits, parameters(top_k=6), draws=20_000)
    kept = torch.tensor([True, True, False, True, True, True, True, False, False])
    assert counts[~kept].sum() == 0
    assert g_statistic(counts[kept], torch.softmax(logits[kept], 0)) < 25


def test_greedy_decoding_is_a_top_k_of_one() -> None:
    logits = torch.randn(40, 30, generator=torch.Generator().manual_seed(3))
    keys = row_keys([stream(SEED, 0)] * 40, range(40))
    assert torch.equal(draw(logits, noise(keys, 30), parameters(top_k=1)).tokens, logits.argmax(1))


def test_the_recorded_log_probability_covers_the_whole_vocabulary_before_mask_and_noise() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(4))
    keys = row_keys([stream(SEED, 9)] * 6, range(6))
    for chosen in (parameters(temperature=0.6), parameters(temperature=0.6, top_k=3, top_p=0.5)):
        drawn = draw(logits, noise(keys, 50), chosen)
        wanted = torch.log_softmax(logits / 0.6, 1).gather(1, drawn.tokens[:, None])[:, 0]
        assert drawn.logprobs.dtype == torch.float32
        torch.testing.assert_close(drawn.logprobs, wanted, rtol=0, atol=2e-6)


def test_half_precision_logits_are_widened_before_scaling() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(5)).bfloat16()
    assert scale(logits, parameters(temperature=0.7)).dtype == torch.float32
    assert torch.equal(scale(logits, parameters(temperature=0.7)), logits.float() / 0.7)


# (top_k, top_p, tokens kept) of probabilities 0.4, 0.3, 0.15, 0.1, 0.05.
KEPT = [
    (0, 1.0, 5),
    (5, 1.0, 5),
    (99, 1.0, 5),
    (2, 1.0, 2),
    (0, 0.39, 1),
    (0, 0.41, 2),
    (0, 0.69, 2),
    (0, 0.71, 3),
    (0, 0.951, 5),
    (0, 1e-9, 1),
    (2, 0.56, 1),  # after top-k the first token has 4/7 = 0.571
    (2, 0.58, 2),
]


@pytest.mark.parametrize(("top_k", "top_p", "kept"), KEPT)
def test_top_p_applies_after_top_k_to_renormalised_probabilities(top_k: int, top_p: float, kept: int) -> None:
    shares = torch.tensor([[0.15, 0.4, 0.05, 0.3, 0.1]])
    scaled = shares.log()
    scores = process(scaled, torch.zeros_like(scaled), parameters(top_k=top_k, top_p=top_p))
    assert int(torch.isfinite(scores).sum()) == kept
    assert torch.isfinite(scores)[0, shares[0].topk(kept).indices].all()


def test_tokens_tied_with_the_last_kept_one_are_kept() -> None:
    scaled = torch.tensor([[1.0, 0.0, 1.0, 1.0, -1.0]])
    for chosen in (parameters(top_k=2), parameters(top_p=0.3)):
        assert torch.isfinite(process(scaled, torch.zeros(1, 5), chosen)).tolist() == [[True, False, True, True, False]]


def test_top_p_of_a_flat_distribution_looks_beyond_its_first_candidates() -> None:
    scaled = torch.randn(2, 5000, generator=torch.Generator().manual_seed(6)) * 0.01
    scaled[1, 17] = 30.0  # one flat row and one with a single dominant token
    kept = (scaled >= mask_of(scaled, parameters(top_p=0.9)).edge_b[:, None]).sum(1)
    assert 4400 < kept[0] < 4600
    assert kept[1] == 1


@given(
    values=st.lists(st.sampled_from([-INFINITY, -3.0, -1.0, 0.0, 0.5, 2.0]), min_size=2, max_size=40),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1.0),
)
def test_the_most_probable_token_is_always_kept_and_an_impossible_one_never_drawn(
    values: list[float], top_k: int, top_p: float
) -> None:
    scaled = torch.tensor([[*values, 1.0]])
    chosen = parameters(top_k=top_k, top_p=top_p)
    scores = process(scaled, torch.zeros_like(scaled), chosen)
    assert torch.isfinite(scores[0, scaled[0].argmax()])
    keys = row_keys([stream(SEED, 1)], [3])
    token = int(draw(scaled, noise(keys, scaled.shape[1]), chosen).tokens)
    assert scaled[0, token] > -INFINITY


def test_the_lowest_of_tied_tokens_is_drawn() -> None:
    assert first_largest(torch.tensor([[0.0, 2.0, 2.0, 1.0], [5.0, 5.0, 5.0, 5.0]])).tolist() == [1, 0]
    wide = torch.zeros(3, 10_000)
    wide[:, [77, 4099, 9999]] = 1.0
    assert first_largest(wide).tolist() == [77, 77, 77]


@pytest.mark.parametrize("row", [[0.0, float("nan")], [0.0, INFINITY], [-INFINITY, -INFINITY]])
def test_non_finite_logits_are_refused(row: list[float]) -> None:
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(NotANumber, match="1 of 2 rows"):
        draw(logits, torch.zeros(2, 2), parameters())


def test_a_different_seed_sample_or_position_draws_different_tokens() -> None:
    logits = torch.zeros(64, 1000)
    of = [
        draw(logits, noise(row_keys([stream(seed, sample)] * 64, range(at, at + 64)), 1000), parameters()).tokens
        for seed, sample, at in ((SEED, 0, 0), (b"\x2b" * 32, 0, 0), (SEED, 1, 0), (SEED, 0, 1))
    ]
    assert all(np.mean((of[0] == other).numpy()) < 0.1 for other in of[1:])
    assert torch.equal(of[0][1:], of[3][:-1]), "a position has its own noise wherever a part begins"
