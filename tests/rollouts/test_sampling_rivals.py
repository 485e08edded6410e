"""Replay by the few tokens that could have won gives bitwise the same result as replay by all tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollouts.sampling import replay as replay_module
from rollouts.sampling.candidate_tokens import MOST_IN_FRONT, MOST_RIVALS, are_few, bar, edges, in_front, rivals_of
from rollouts.sampling.noise import WordBlocks, gumbel_numpy, noise, noise_at, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.philox import philox_numpy
from rollouts.sampling.replay import Gaps, gaps_of_rows
from rollouts.sampling.sampler import NotANumber, first_largest, log_sums, scale
from rollouts.sampling.softmax import Softmax, weigh

SEED = b"\x21" * 32
Keys = NDArray[np.uint64]


def keys_of(rows: int, *, samples: int = 1) -> Keys:
    return row_keys([stream(SEED, row % samples) for row in range(rows)], range(rows))


def scores_of(logits_rv: torch.Tensor, keys: Keys, parameters: SamplingParameters) -> torch.Tensor:
    return scale(logits_rv, parameters) + noise(keys, logits_rv.shape[1])


def agrees(logits_rv: torch.Tensor, tokens: list[int], keys: Keys, parameters: SamplingParameters) -> Gaps:
    """Replays and compares with the definition: the largest of all scores, and of tied ones the first."""
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
@pytest.mark.parametrize("vocabulary", [1, 2, 5, 256, 301, 8192, 33_001])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 40.0, 1e4])
def test_the_rival_search_gives_the_same_gaps_as_the_full_noise(samples: int, vocabulary: int, spread: float) -> None:
    rows = 12
    logits_rv = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(3)) * spread
    keys, plain = keys_of(rows, samples=samples), SamplingParameters(max_new_tokens=1)
    scores_rv = scores_of(logits_rv, keys, plain)
    drawn = first_largest(scores_rv)
    assert not agrees(logits_rv, drawn.tolist(), keys, plain).deviations.any()
    second = scores_rv.topk(min(2, vocabulary), dim=1).indices[:, -1]
    for tokens in (second, logits_rv.argmax(1), logits_rv.argmin(1), (drawn + 1) % vocabulary):
        agrees(logits_rv, tokens.tolist(), keys, plain)


@given(
    temperature=st.sampled_from([0.01, 0.5, 1.0, 1.7, 100.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1 << 30),
    vocabulary=st.integers(1, 700),
    at_once=st.sampled_from([1, 64, 1 << 17]),
)
def test_the_rival_search_is_exact_for_any_temperature_dtype_and_part_size(
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


def test_of_tied_scores_only_the_first_token_counts_as_drawn() -> None:
    """Logits so large that noise is rounded away: all scores are equal, and only token 0 is the draw."""
    logits_rv = torch.full((3, 40), 2.0**40)
    seen = agrees(logits_rv, [0, 1, 39], keys_of(3), SamplingParameters(max_new_tokens=1))
    assert seen.mismatches.tolist() == [False, True, True]
    assert not seen.gaps.any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("more", [0, 400], ids=["by all noise", "by rivals"])
def test_impossible_tokens_and_non_finite_rows_are_handled_like_the_full_noise(more: int) -> None:
    plain, keys, rest = SamplingParameters(max_new_tokens=1), keys_of(2), [-torch.inf] * more
    logits_rv = torch.tensor([[0.0, -torch.inf, 1.0, *rest], [-torch.inf, 0.0, -torch.inf, *rest]])
    seen = agrees(logits_rv, [1, 1], keys, plain)
    assert seen.gaps.tolist() == [replay_module.MOST_DEVIATION, 0.0]
    for broken in ([0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [torch.inf, 0.0, 1.0], [-torch.inf] * 3):
        with pytest.raises(NotANumber, match="1 of 2 rows"):
            gaps_of_rows(torch.tensor([[0.0, 0.0, 0.0, *rest], [*broken, *rest]]), [0, 0], keys, plain)


EXTREME = np.array([0, 1, 2, 1 << 31, *(2**32 - 1 - np.arange(70)), *(2**32 - (1 << np.arange(7, 31)))], np.uint64)


@pytest.mark.parametrize("peak", [-3e4, -20.0, 0.0, 0.1, 700.0, 6e4])
def test_no_extreme_noise_word_can_win_without_being_examined(peak: float) -> None:
    """Each token in turn is the recorded one with the score of its own word; rivals with the same score must be
    examined.
    """
    generator = np.random.default_rng(5)
    count = 400
    words = np.concatenate([EXTREME, generator.integers(0, 1 << 32, count - len(EXTREME), dtype=np.uint64)])
    below = -np.abs(generator.normal(size=count) * generator.choice([1e-6, 1.0, 12.0], count))
    below[generator.integers(count)] = 0.0
    logits = (peak + below).astype(np.float32)
    scores = logits + gumbel_numpy(words.astype(np.float64))
    inverted = ~words.astype(np.uint32)
    for vocabulary in (256, 8192, 200_000):
        for score, edge in zip(scores, edges(scores, vocabulary), strict=True):
            assert ((inverted < bar(vocabulary)) | (logits > edge))[scores >= score].all()


def test_honest_draws_have_some_dozens_of_rivals_per_row_including_every_possible_winner() -> None:
    rows, vocabulary = 400, 5001
    logits_rv = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(9)) * 2
    keys = keys_of(rows)
    noise_rv = noise(keys, vocabulary)
    score_r = (logits_rv + noise_rv).amax(1)
    softmax = Softmax.room(rows, device=logits_rv.device)
    weigh(logits_rv, softmax, torch.empty(2, rows, vocabulary))
    assert are_few(softmax, score_r.numpy()).all()
    edge_r = edges(score_r.numpy(), vocabulary)
    *front, crowded = in_front(logits_rv.numpy(), softmax.peak_b.numpy(), edge_r)
    assert not len(crowded)
    found = rivals_of(keys, (front[0], front[1]), vocabulary, blocks=WordBlocks(rows, vocabulary))
    assert rows <= len(found.rows) <= 100 * rows
    assert np.array_equal(found.noise, noise_rv.numpy()[found.rows, found.tokens])
    winning = torch.nonzero(logits_rv + noise_rv >= score_r[:, None] - 1e-4)
    assert {*map(tuple, winning.tolist())} <= {*zip(found.rows.tolist(), found.tokens.tolist(), strict=True)}


@pytest.mark.parametrize("few", [True, False], ids=["some-rows", "all-rows"])
def test_tokens_above_the_edge_are_examined_except_in_crowded_rows(few: bool) -> None:
    logits_rv = torch.randn(9, 400, generator=torch.Generator().manual_seed(4)).numpy()
    edge_r = np.array([2.0, 9.0, 9.0, 9.0, -1.0, 9.0, 9.0, 9.0, 1.9] if few else [2.0] * 4 + [-1.0] * 5, np.float32)
    above = logits_rv > edge_r[:, None]
    too_many = above.sum(1) > MOST_IN_FRONT * 400
    rows, tokens, crowded = in_front(logits_rv, logits_rv.max(1), edge_r)
    assert crowded.tolist() == np.flatnonzero(too_many).tolist() != []
    assert np.array_equal([rows, tokens], np.nonzero(above & ~too_many[:, None]))


def test_the_rivals_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary = 6, 1003
    keys = keys_of(rows, samples=2)
    front = np.array([0, 0, 3, 5]), np.array([0, 1002, 515, 7])
    seen = []
    for counters in (64, 251, 700, 1 << 15):
        monkeypatch.setattr("rollouts.sampling.noise._COUNTERS_CPU", counters)
        found = rivals_of(keys, front, vocabulary, blocks=WordBlocks(rows, vocabulary))
        seen.append(sorted(zip(found.rows.tolist(), found.tokens.tolist(), found.words.tolist(), strict=True)))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert {*zip(*(one.tolist() for one in front), strict=True)} <= {(row, token) for row, token, _ in seen[0]}


def test_rivals_are_not_searched_where_they_would_be_many() -> None:
    softmax = Softmax.room(3, device=torch.device("cpu"))
    weigh(torch.zeros(3, 1000), softmax, torch.empty(2, 3, 1000))
    edge = float(np.log(1000 / MOST_RIVALS))
    assert are_few(softmax, np.array([edge - 0.1, edge + 0.1, -np.inf], np.float32)).tolist() == [False, True, False]


@pytest.mark.parametrize("samples", [1, 5], ids=["one-stream", "five-streams"])
@pytest.mark.parametrize("vocabulary", [1, 3, 4, 63, 2049, 140_001])
def test_noise_words_of_rows_match_the_definition(samples: int, vocabulary: int) -> None:
    keys = row_keys([stream(SEED, row % samples) for row in range(20)], [0, 1, 2**32 - 1, *range(3, 20)])
    first = np.arange(-(-vocabulary // 4), dtype=np.uint64)[None]
    left, right, two, three, position = (keys[:, at, None] for at in range(5))
    lanes = np.broadcast_arrays(*philox_numpy((first, position, two, three), (left, right)))
    expected = np.stack(lanes, axis=-1).reshape(20, -1)[:, :vocabulary].astype(np.uint32)
    found, turned = (np.zeros((20, -(-vocabulary // 4) * 4), np.uint32) for _ in range(2))
    blocks = WordBlocks(20, vocabulary)
    for row, token, words in blocks.of(keys):
        found[row, token] = words
    for block in blocks.pairs(keys):
        turned[block.tokens_at(np.arange(len(block.words)))] = block.words
    assert np.array_equal(found[:, :vocabulary], expected)
    assert np.array_equal(~turned[:, :vocabulary], expected)


def test_noise_of_a_single_token_equals_that_of_the_full_row() -> None:
    keys = row_keys([stream(SEED, row) for row in range(30)], range(100, 130))
    tokens = np.arange(30, dtype=np.int64) * 1009
    assert np.array_equal(noise_at(keys, tokens), noise(keys, 30_000).numpy()[np.arange(30), tokens])


def test_zero_rows_give_empty_results() -> None:
    for vocabulary in (50, 500):
        seen = gaps_of_rows(torch.empty(0, vocabulary), [], keys_of(0), SamplingParameters(max_new_tokens=1))
        assert seen.gaps.shape == seen.mismatches.shape == (0,)
    assert noise(keys_of(0), 50).shape == (0, 50)
