"""Replay finds no gap in an honest answer, and gaps in every other."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from rollouts.sampling import replay as replay_module
from rollouts.sampling.noise import noise, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import MOST_DEVIATION, Gaps, gaps, gaps_of_rows, summarise
from rollouts.sampling.sampler import draw

SEED, SAMPLE, LENGTH, VOCABULARY = b"\x11" * 32, 5, 400, 300
PLAIN = SamplingParameters(max_new_tokens=LENGTH)
MASKED = SamplingParameters(max_new_tokens=LENGTH, temperature=0.8, top_k=50, top_p=0.9)


def logits_of(kind: int = 0) -> torch.Tensor:
    return torch.randn(LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(kind)) * 2


def answer(
    logits: torch.Tensor, parameters: SamplingParameters = PLAIN, *, seed: bytes = SEED, sample: int = SAMPLE
) -> list[int]:
    keys = row_keys([stream(seed, sample)] * LENGTH, range(LENGTH))
    return [int(token) for token in draw(logits, noise(keys, VOCABULARY), parameters).tokens]


def replay(tokens: list[int], parameters: SamplingParameters = PLAIN, logits: torch.Tensor | None = None) -> Gaps:
    given = logits_of() if logits is None else logits
    return gaps(given, tokens, seed=SEED, sample=SAMPLE, parameters=parameters)


@pytest.mark.parametrize("parameters", [PLAIN, MASKED], ids=["plain", "masked"])
def test_an_honest_answer_has_no_gaps(parameters: SamplingParameters) -> None:
    seen = replay(answer(logits_of(), parameters), parameters)
    assert not seen.mismatches.any()
    assert not seen.deviations.any()


def test_an_honest_answer_from_slightly_different_arithmetic_has_few_small_gaps() -> None:
    errors = torch.randn(LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(8)) * 0.01
    for parameters in (PLAIN, MASKED):
        figures = summarise([replay(answer(logits_of() + errors, parameters), parameters)])
        assert figures.mismatch_share < 0.03
        assert figures.largest < 0.1
        assert figures.largest_sum < 0.3


CHEATS: dict[str, Callable[[], list[int]]] = {
    "greedy": lambda: [int(token) for token in logits_of().argmax(1)],
    "another seed": lambda: answer(logits_of(), seed=b"\x12" * 32),
    "another sample of the slot": lambda: answer(logits_of(), sample=SAMPLE + 1),
    "a colder temperature": lambda: answer(logits_of(), SamplingParameters(max_new_tokens=LENGTH, temperature=0.8)),
    "a mask": lambda: answer(logits_of(), SamplingParameters(max_new_tokens=LENGTH, top_p=0.8)),
    "another model": lambda: answer(logits_of(1)),
    "one position late": lambda: [0, *answer(logits_of())[:-1]],
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_every_other_sampling_method_is_detected(cheat: str) -> None:
    figures = summarise([replay(CHEATS[cheat]())])
    assert figures.mismatch_share > 0.05
    assert figures.largest > 0.5
    assert figures.largest_sum > 5


def test_one_changed_token_is_found_at_its_position() -> None:
    tokens = answer(logits_of())
    tokens[123] = (tokens[123] + 1) % VOCABULARY
    assert np.flatnonzero(replay(tokens).mismatches).tolist() == [123]


def test_the_gap_is_the_best_score_minus_the_recorded_tokens_score() -> None:
    tokens = answer(logits_of())
    tokens[7] = 0
    keys = row_keys([stream(SEED, SAMPLE)], [7])
    scores = logits_of()[7] + noise(keys, VOCABULARY)[0]
    assert replay(tokens).gaps[7] == pytest.approx(float(scores.max() - scores[0]), rel=1e-6)


def log_odds(share: float) -> float:
    return math.log(share / (1 - share))


# Shares, recorded token, mask, gap, distance outside. The noise of the four tokens is -0.91, -0.38, 1.76, 0.14: token 2
# wins whenever it is inside the mask.
AT_THE_EDGE = {
    "inside, and the winner": ([0.6, 0.05, 0.3, 0.05], 2, {"top_p": 0.601}, 0.0, 0.0),
    "the other side's top-p may have left the winner out": (
        ([0.6, 0.05, 0.3, 0.05], 0, {"top_p": 0.601}, log_odds(0.601) - log_odds(0.6), 0.0)
    ),
    "no machine's top-p would have left the winner out": (
        ([0.6, 0.05, 0.3, 0.05], 0, {"top_p": 0.9}, log_odds(0.9) - log_odds(0.6), 0.0)
    ),
    "the other side's top-p may have let it in": (
        ([0.6, 0.05, 0.3, 0.05], 2, {"top_p": 0.599}, 0.0, log_odds(0.6) - log_odds(0.599))
    ),
    "level with a kept one but for a little": (
        ([0.3, 0.1, 0.299, 0.301], 0, {"top_k": 1}, math.log(0.301 / 0.3), math.log(0.301 / 0.3))
    ),
    "no machine's top-k would have let it in": (
        ([0.3, 0.1, 0.299, 0.301], 1, {"top_k": 1}, math.log(0.301 / 0.3), math.log(3.01))
    ),
    "impossible": ([0.5, 0.25, 0.25, 0.0], 3, {"top_p": 0.9}, MOST_DEVIATION, MOST_DEVIATION),
    "impossible without a mask": ([0.5, 0.25, 0.25, 0.0], 3, {}, MOST_DEVIATION, 0.0),
}


@pytest.mark.parametrize("case", AT_THE_EDGE)
def test_near_the_mask_edge_the_deviation_is_the_distance_to_the_edge(case: str) -> None:
    shares, token, kept, gap, outside = AT_THE_EDGE[case]
    parameters = SamplingParameters(max_new_tokens=1, **kept)  # type: ignore[arg-type]  # top_k is whole where it stands
    seen = gaps(torch.tensor([shares]).log(), [token], seed=SEED, sample=SAMPLE, parameters=parameters)
    assert seen.gaps[0] == pytest.approx(gap, abs=1e-5)
    assert seen.outside[0] == pytest.approx(outside, abs=1e-5)


def test_a_token_outside_the_mask_is_measured_by_its_distance_to_the_edge() -> None:
    """This holds even where the token's noise is so large that it would have won: outside, no score counts."""
    parameters = SamplingParameters(max_new_tokens=1, top_k=2)
    keys = row_keys([stream(SEED, SAMPLE)], [0])
    loudest = int(noise(keys, VOCABULARY)[0].argmax())
    logits = torch.full((1, VOCABULARY), -1.0)
    logits[0, [1, 2]] = torch.tensor([0.25, 0.75])
    seen = gaps(logits, [loudest], seed=SEED, sample=SAMPLE, parameters=parameters)
    assert seen.gaps.tolist() == [0.0]
    assert seen.outside.tolist() == [1.25]
    assert seen.mismatches.tolist() == [True]


def test_replay_computes_the_log_probabilities_recorded_by_sampling() -> None:
    keys = row_keys([stream(SEED, SAMPLE)] * LENGTH, range(LENGTH))
    drawn = draw(logits_of(), noise(keys, VOCABULARY), MASKED)
    assert np.allclose(replay(drawn.tokens.tolist(), MASKED).logprobs, drawn.logprobs.numpy(), atol=1e-6)


def test_an_answer_can_be_replayed_in_parts_and_rows_of_many_samples_together() -> None:
    tokens = answer(logits_of())
    whole = replay(tokens)
    tail = gaps(logits_of()[150:], tokens[150:], seed=SEED, sample=SAMPLE, parameters=PLAIN, start=150)
    assert np.array_equal(tail.logprobs, whole.logprobs[150:])
    assert not tail.mismatches.any()
    keys = row_keys([stream(SEED, SAMPLE)] * 3, [9, 2, 390])
    rows = gaps_of_rows(logits_of()[[9, 2, 390]], [tokens[9], tokens[2], tokens[390]], keys, PLAIN)
    assert not rows.mismatches.any()


def test_a_long_answer_is_replayed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = answer(logits_of())
    tokens[200] = (tokens[200] + 1) % VOCABULARY
    whole = replay(tokens)
    monkeypatch.setattr(replay_module, "_VALUES_AT_ONCE", VOCABULARY * 7)
    parts = replay(tokens)
    assert np.array_equal(parts.mismatches, whole.mismatches)
    np.testing.assert_allclose(parts.gaps, whole.gaps, atol=1e-6)


def test_a_files_statistics_hold_the_worst_sample_and_the_total_count() -> None:
    def sample(*deviations: float) -> Gaps:
        values = np.array(deviations, dtype=np.float32)
        zeros = values * 0
        return Gaps(gaps=values, outside=zeros, mismatches=values > 0, logprobs=zeros, excess=zeros, variance=zeros)

    figures = summarise([sample(0, 0.5, 0), sample(0.25, 0.25, 0.25, 0.25), sample()])
    assert (figures.tokens, figures.mismatches) == (7, 5)
    assert figures.mismatch_share == pytest.approx(5 / 7)
    assert (figures.largest, figures.largest_sum) == (0.5, 1.0)
    assert summarise([]).mismatch_share == 0.0


@given(
    rows=st.lists(
        st.lists(st.sampled_from([-math.inf, -1e4, -3.0, 0.0, 0.5, 1e4]), min_size=4, max_size=4),
        min_size=1,
        max_size=6,
    ),
    token=st.integers(0, 4),
    temperature=st.sampled_from([0.01, 1.0, 100.0]),
    top_k=st.integers(0, 6),
    top_p=st.floats(1e-6, 1.0),
)
def test_replay_statistics_are_finite_and_a_zero_gap_means_the_right_token(
    rows: list[list[float]], token: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits = torch.tensor([[*row, 1.0] for row in rows])
    parameters = SamplingParameters(max_new_tokens=9, temperature=temperature, top_k=top_k, top_p=top_p)
    seen = gaps(logits, [token] * len(rows), seed=SEED, sample=SAMPLE, parameters=parameters)
    for figures in (seen.gaps, seen.outside, seen.logprobs):
        assert np.isfinite(figures).all()
    assert (seen.gaps >= 0).all()
    assert (seen.outside >= 0).all()
    right = draw(logits, noise(row_keys([stream(SEED, SAMPLE)] * len(rows), range(len(rows))), 5), parameters).tokens
    assert np.array_equal(seen.mismatches, (right != token).numpy())
    assert not seen.deviations[~seen.mismatches].any()


def test_inputs_that_cannot_be_replayed_are_refused() -> None:
    with pytest.raises(InvalidInput, match="400 rows of logits, 3 tokens"):
        replay([1, 2, 3])
    for token in (-1, VOCABULARY):
        with pytest.raises(InvalidInput, match="outside the vocabulary of 300"):
            replay([token] * LENGTH)
