"""Finds the few tokens of the vocabulary that can score better than the recorded one, without a logarithm.

A token of scaled logit l and word w beats a score s if l + g(w) ≥ s. With u = (w + ½)·2⁻³² and g = -log(-log u) that is

    1 - u  ≤  -log u  ≤  exp(l - s),        so        2³² - 1 - w  <  2³² · exp(l - s)

The left side is the word with its bits inverted. If exp(l - s) is at most a share q, a token can only beat s if its
inverted word is below q·2³²: one comparison with a constant, for every token and row. Tokens with logits above
s + log q are "in front": they are candidates for every value of their random words. With q = 16 / vocabulary, the
comparison yields about 16 tokens per row.

The expected number of tokens that beat the recorded token is at most Σ exp(l - s), which is exponentially distributed
with mean 1 in an honest draw. Each token in front contributes more than q to this sum, so at most vocabulary / 16
tokens are in front for each token expected to win. In practice fewer than a few hundred tokens are in front, because a
language model gives few tokens a probability above q, and hardly any if logits are flat. Noise is computed for
candidates only.

Shapes: r rows, v tokens of the vocabulary, n candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollouts.sampling.noise import Keys, WordBlocks, gumbel_numpy
from rollouts.sampling.softmax import Softmax

MOST_RIVALS = 64.0
"""Largest expected number of winning tokens per row for which this method is cheaper than computing all noise. One
honest draw in 10²⁷ exceeds it.
"""
LEAST_VOCABULARY = 256
"""Smallest vocabulary for this method; for smaller ones, computing all noise is cheaper."""
MOST_SCORE = 2.0**16
"""Maximum absolute score for this method; float32 represents larger scores too coarsely for the comparison."""
MOST_IN_FRONT = 1 / 8
"""Largest share of a vocabulary that may be in front; above it, computing all noise of the row costs hardly more."""

BY_THEIR_WORDS = 16
"""Default of `by_words`: expected candidates per row that the comparison of words yields, besides tokens in front."""
_SLACK = 1e-4
_SLACK_PER_SCORE = 2.0**-20
"""The tolerance of the comparison, in units of scores, is `_SLACK` plus `_SLACK_PER_SCORE` times |s|. Rounding changes
each of the two compared scores by at most 2⁻²⁴ of its value, and the error of a word's noise is below 1e-5."""

_Singles = NDArray[np.float32]
_Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class CandidateTokens:
    """Candidate tokens of some rows: all tokens whose score reaches the given score of their row, and some others.

    The list may contain duplicates.

    Args:
        rows: int64 [N].
        tokens: int64 [N].
        words: uint32 [N].
    """

    rows: _Places
    tokens: _Places
    words: NDArray[np.uint32]

    @property
    def noise(self) -> _Singles:
        """Returns the noise of the candidates, float32 [N]."""
        return gumbel_numpy(self.words.astype(np.float64))


def bar(vocabulary: int, *, by_words: int = BY_THEIR_WORDS) -> np.uint32:
    """Returns the bound below which an inverted word makes its token a candidate."""
    return np.uint32(math.ceil(by_words / vocabulary * 2.0**32))


def edges(scores_r: _Singles, vocabulary: int, *, by_words: int = BY_THEIR_WORDS) -> _Singles:
    """Returns for each row the scaled logit above which a token is in front, float32 [R]."""
    down_r = _SLACK + _SLACK_PER_SCORE * np.abs(scores_r.astype(np.float64)) - math.log(by_words / vocabulary)
    with np.errstate(invalid="ignore"):  # inf - inf is NaN; callers compute all noise of such rows
        return (scores_r - down_r).astype(np.float32)


def in_front(scaled_rv: _Singles, peak_r: _Singles, edge_r: _Singles) -> tuple[_Places, _Places, _Places]:
    """Returns the rows and tokens of all tokens in front, sorted, and the rows that have too many of them.

    The tokens of rows with too many tokens in front are left out.
    """
    risen = np.flatnonzero(peak_r > edge_r)
    if not len(risen):
        return risen, risen, risen
    if 2 * len(risen) > len(peak_r):
        risen = np.arange(len(peak_r))  # selecting rows copies them, so comparing all rows is as fast here
        above_rv = scaled_rv > edge_r[:, None]
    else:
        above_rv = scaled_rv[risen] > edge_r[risen, None]
    rows, tokens = np.divmod(np.flatnonzero(above_rv), scaled_rv.shape[1])
    crowded = np.flatnonzero(np.bincount(rows, minlength=len(risen)) > MOST_IN_FRONT * scaled_rv.shape[1])
    if len(crowded):
        fine = ~np.isin(rows, crowded)
        rows, tokens = rows[fine], tokens[fine]
    return risen[rows], tokens, risen[crowded]


def are_few(softmax: Softmax, scores_r: _Singles) -> NDArray[np.bool_]:
    """Returns for each row whether `rivals_of` may be used; bool [R].

    The row's candidates must be few enough to be listed, and its score exact enough for a comparison in float32.

    Args:
        softmax: Softmax of scaled logits, on the CPU.
        scores_r: Score of one token of each row: scaled logit plus noise.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # overflow yields False
        above_r = softmax.peak_b.numpy().astype(np.float64) - scores_r
        few_r: NDArray[np.bool_] = softmax.sum_b.numpy() * np.exp(above_r) <= MOST_RIVALS
        return few_r & (np.abs(scores_r) <= MOST_SCORE)


def rivals_of(
    keys: Keys,
    front: tuple[_Places, _Places],
    vocabulary: int,
    *,
    blocks: WordBlocks,
    by_words: int = BY_THEIR_WORDS,
) -> CandidateTokens:
    """Returns a superset of the tokens whose score reaches their row's score.

    The function is for rows where `are_few` is true.

    Args:
        keys: `row_keys` of the rows.
        front: Rows and tokens of all tokens in front, sorted by row.
        vocabulary: Tokens per row, at least `LEAST_VOCABULARY`.
        blocks: Scratch space for this many rows and tokens.
        by_words: Expected candidates per row by their words alone; must equal the argument of `edges`.
    """
    below = bar(vocabulary, by_words=by_words)
    none = np.empty(0, np.intp)
    found = [(none, none, np.empty(0, np.uint32))]
    for block in blocks.pairs(keys):
        both = np.flatnonzero(block.words < below), block.places_of(*front)
        found += [(*block.tokens_at(places), ~block.words[places]) for places in both]
    rows, tokens, words = (np.concatenate(each) for each in zip(*found, strict=True))
    inside = tokens < vocabulary
    return CandidateTokens(rows[inside], tokens[inside], words[inside])
