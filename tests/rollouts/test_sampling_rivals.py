"""Replay by the few tokens that could have won says what replay by all of them says, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollouts.sampling import replay as replay_module
from rollouts.sampling.drawing import NotANumber, first_largest, log_sums, scale
from rollouts.sampling.noise import WordBlocks, gumbel_numpy, noise, noise_at, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.philox import philox_numpy
from rollouts.sampling.replay import Gaps, gaps_of_rows
from rollouts.sampling.rivals import MOST_RIVALS, rivals_of, thresholds
from rollouts.sampling.softmax import Softmax, weigh

SEED = b"\x21" * 32
Keys = NDArray[np.uint64]


def keys_of(rows: int, *, samples: int = 1) -> Keys:
    return row_keys([stream(SEED, row % samples) for row in range(rows)], range(rows))


def scores_of(logits_rv: torch.Tensor, keys: Keys, parameters: SamplingParameters) -> torch.Tensor:
    return scale(logits_rv, parameters) + noise(keys, logits_rv.shape[1])


def agrees(logits_rv: torch.Tensor, tokens: list[int], keys: Keys, parameters: SamplingParameters) -> Gaps:
    """Replays, and holds it against the definition: the largest of all scores, and of equal ones the first."""
    seen = gaps_of_rows(logits_rv, tokens, keys, parameters)
    scores_rv, tokens_r1 = scores_of(logits_rv, keys, parameters), torch.tensor(tokens)[:, None]
    gap_r = (scores_rv.amax(1, keepdim=True) - scores_rv.gather(1, tokens_r1))[:, 0]
    assert np.array_equal(seen.gaps, gap_r.clamp_max(replay_module.MOST_DEVIATION).numpy())
    assert np.array_equal(seen.mismatches, (first_largest(scores_rv) != tokens_r1[:, 0]).numpy())
    scaled_rv = scale(logits_rv, parameters)
    logprob_r = scaled_rv.gather(1, tokens_r1)[:, 0] - log_sums(scaled_rv)
    assert np.allclose(seen.logprobs, logprob_r.clamp_min(-replay_module.MOST_DEVIATION).numpy(), rtol=1e-6, atol=1e-6)
    return seen


@pytest.mark.parametrize("samples", [1, 7], ids=["one-stream", "seven-streams"])
@pytest.mark.parametrize("vocabulary", [1, 2, 5, 300, 8192, 33_001])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 40.0, 1e4])
def test_whatever_was_recorded_has_the_gap_that_all_noise_gives_it(
    samples: int, vocabulary: int, spread: float
) -> None:
    rows = 12
    logits_rv = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(3)) * spread
    keys, plain = keys_of(rows, samples=samples), SamplingParameters(max_new_tokens=1)
    scores_rv = scores_of(logits_rv, keys, plain)
    drawn = first_largest(scores_rv)
    assert not agrees(logits_rv, drawn.tolist(), keys, plain).deviations.any()
    second = scores_rv.topk(min(2, vocabulary), dim=1).indices[:, -1]
    for tokens in (second, logits_rv.argmax(1), logits_rv.argmin(1), (drawn + 1) % vocabulary):
        agrees(logits_rv, tokens.tolist(), keys, plain)


@settings(max_examples=60, deadline=None)
@given(
    temperature=st.sampled_from([0.01, 0.5, 1.0, 1.7, 100.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1 << 30),
    vocabulary=st.integers(1, 700),
    at_once=st.sampled_from([1, 64, 1 << 17]),
)
def test_temperatures_types_and_stretches_change_nothing(
    temperature: float, dtype: torch.dtype, seed: int, vocabulary: int, at_once: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits_rv = (torch.randn(9, vocabulary, generator=generator) * 4).round(decimals=1).to(dtype)  # with many ties
    tokens = torch.randint(0, vocabulary, (9,), generator=generator)
    parameters = SamplingParameters(max_new_tokens=1, temperature=temperature)
    keys = keys_of(9, samples=3)
    drawn = first_largest(scores_of(logits_rv, keys, parameters))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_module, "_VALUES_AT_ONCE", at_once)
        agrees(logits_rv, torch.where(torch.arange(9) % 2 == 0, drawn, tokens).tolist(), keys, parameters)


def test_of_equal_scores_the_first_had_to_come() -> None:
    """Logits so large that noise is rounded away: all scores are equal, and only token 0 is the draw."""
    logits_rv = torch.full((3, 40), 2.0**40)
    seen = agrees(logits_rv, [0, 1, 39], keys_of(3), SamplingParameters(max_new_tokens=1))
    assert seen.mismatches.tolist() == [False, True, True]
    assert not seen.gaps.any()


def test_tokens_that_can_t_come_and_rows_that_are_no_numbers() -> None:
    plain, keys = SamplingParameters(max_new_tokens=1), keys_of(2)
    logits_rv = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf, 0.0, -torch.inf]])
    seen = agrees(logits_rv, [1, 1], keys, plain)
    assert seen.gaps.tolist() == [replay_module.MOST_DEVIATION, 0.0]
    for broken in ([0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3):
        with pytest.raises(NotANumber, match="1 of 2 rows"):
            gaps_of_rows(torch.tensor([[0.0, 0.0, 0.0], broken]), [0, 0], keys, plain)


EXTREME = np.array([0, 1, 2, 1 << 31, *(2**32 - 1 - np.arange(70)), *(2**32 - (1 << np.arange(7, 31)))], np.uint64)


@pytest.mark.parametrize("peak", [-3e4, -20.0, 0.0, 0.1, 700.0, 6e4])
def test_no_word_however_extreme_wins_without_being_looked_at(peak: float) -> None:
    """Each token in turn is the recorded one, with a score of its own word; whoever has as good a one must be below."""
    generator = np.random.default_rng(5)
    count = 400
    words = np.concatenate([EXTREME, generator.integers(0, 1 << 32, count - len(EXTREME), dtype=np.uint64)])
    below = -np.abs(generator.normal(size=count) * generator.choice([1e-6, 1.0, 12.0], count))
    below[generator.integers(count)] = 0.0
    logits = torch.from_numpy((peak + below).astype(np.float32))[None]
    scores = logits[0].numpy() + gumbel_numpy(words.astype(np.float64))
    softmax = Softmax.room(1, device=logits.device)
    weights = weigh(logits, softmax, torch.empty(2, 1, count))[0].numpy()
    inverted = (~words.astype(np.uint32)).astype(np.float32)
    looked_at = 0
    for score in scores:
        most = thresholds(softmax, np.array([score], np.float32))[0]
        if most >= 0:
            looked_at += 1
            assert (inverted <= weights * most)[scores >= score].all()
    assert looked_at > 3


def test_of_draws_there_are_about_two_rivals_a_row() -> None:
    rows, vocabulary = 400, 5000
    logits_rv = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(9)) * 2
    keys = keys_of(rows)
    scores_rv = logits_rv + noise(keys, vocabulary)
    softmax, room = Softmax.room(rows, device=logits_rv.device), torch.empty(2, rows, vocabulary)
    weights = weigh(logits_rv, softmax, room)
    most = thresholds(softmax, scores_rv.amax(1).numpy())
    assert (most > 0).all()
    found = rivals_of(weights.numpy(), most, keys, blocks=WordBlocks(rows, vocabulary), room_rv=room[1].numpy())
    assert rows <= len(found.rows) <= 3 * rows
    assert np.array_equal(found.noise, noise(keys, vocabulary).numpy()[found.rows, found.tokens])


def test_where_rivals_would_be_many_there_is_no_threshold() -> None:
    softmax = Softmax.room(3, device=torch.device("cpu"))
    logits_rv = torch.zeros(3, 1000)
    weigh(logits_rv, softmax, torch.empty(2, 3, 1000))
    edge = float(np.log(1000 / MOST_RIVALS))
    assert (thresholds(softmax, np.array([edge - 0.1, edge + 0.1, -np.inf], np.float32)) > 0).tolist() == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("samples", [1, 5], ids=["one-stream", "five-streams"])
@pytest.mark.parametrize("vocabulary", [1, 3, 4, 63, 2049, 140_001])
def test_words_of_rows_are_those_of_the_definition(samples: int, vocabulary: int) -> None:
    keys = row_keys([stream(SEED, row % samples) for row in range(20)], [0, 1, 2**32 - 1, *range(3, 20)])
    first = np.arange(-(-vocabulary // 4), dtype=np.uint64)[None]
    left, right, two, three, position = (keys[:, at, None] for at in range(5))
    lanes = np.broadcast_arrays(*philox_numpy((first, position, two, three), (left, right)))
    expected = np.stack(lanes, axis=-1).reshape(20, -1)[:, :vocabulary].astype(np.uint32)
    for inverted in (False, True):
        found = np.zeros((20, vocabulary), np.uint32)
        for row, token, block in WordBlocks(20, vocabulary).of(keys, inverted=inverted):
            found[row, token] = block
        assert np.array_equal(~found if inverted else found, expected)


def test_noise_at_one_token_is_the_noise_of_it() -> None:
    keys = row_keys([stream(SEED, row) for row in range(30)], range(100, 130))
    tokens = np.arange(30, dtype=np.int64) * 1009
    assert np.array_equal(noise_at(keys, tokens), noise(keys, 30_000).numpy()[np.arange(30), tokens])


def test_of_no_rows_nothing_is_computed() -> None:
    seen = gaps_of_rows(torch.empty(0, 50), [], keys_of(0), SamplingParameters(max_new_tokens=1))
    assert seen.gaps.shape == seen.mismatches.shape == (0,)
    assert noise(keys_of(0), 50).shape == (0, 50)
