"""Which tokens can have a better score than the recorded one: a few of the vocabulary, found without a logarithm.

A token of scaled logit l and word w beats a score s if l + g(w) ≥ s. With u = (w + ½)·2⁻³² and g = -log(-log u) that is

    1 - u  ≤  -log u  ≤  exp(l - s),        so        2³² - 1 - w  <  2³² · exp(l - s)

The left side is the word with its bits turned over. Where exp(l - s) is at most a share q, only words below q·2³² can
win: one comparison with one number, whatever the token and whatever the row. The tokens above, whose logits are over
s + log q, are in front: they are looked at whatever their words are. With q = 16 / vocabulary that is about 16 tokens a
row by their words, and of a draw's row at most 16 more are in front for each one that could beat it on average, which
is exponentially distributed with mean 1: all but always a few hundred, and hardly any where logits are flat. Only
theirs is the noise that is computed.

Shapes: r rows, v tokens of the vocabulary, n rivals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollouts.sampling.noise import Keys, WordBlocks, gumbel_numpy
from rollouts.sampling.softmax import Softmax

MOST_RIVALS = 64.0
"""On average, of a row; then it is still cheaper than to compute all noise. A draw has more once in 10²⁷ times."""
LEAST_VOCABULARY = 256
"""Of fewer tokens the noise of all is cheaper."""
MOST_SCORE = 2.0**16
"""Beyond it scores are too coarse to be compared so."""
MOST_IN_FRONT = 1 / 8
"""Of a vocabulary; with more, all noise of the row is hardly dearer."""

_BY_THEIR_WORDS = 16
"""Of a row, on average."""
_SLACK = 1e-4
_SLACK_PER_SCORE = 2.0**-20
"""How much further down a token is still looked at, in units of scores: at least, and for each unit of |s|. A score is
wrong by one rounding, 2⁻²⁴ of it, and so is what it is compared with; the noise of a word by less than 1e-5."""

_Singles = NDArray[np.float32]
_Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class CandidateTokens:
    """Tokens that may have a score as good as the given one, and others; some may stand here twice.

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
        """Float32 [N]."""
        return gumbel_numpy(self.words.astype(np.float64))


def bar(vocabulary: int) -> np.uint32:
    """Returns what a word, turned over, must be below to win where its token is not in front."""
    return np.uint32(math.ceil(_share(vocabulary) * 2.0**32))


def edges(scores_r: _Singles, vocabulary: int) -> _Singles:
    """Returns the scaled logit of each row above which a token is in front, float32 [R]."""
    down_r = _SLACK + _SLACK_PER_SCORE * np.abs(scores_r.astype(np.float64)) - math.log(_share(vocabulary))
    with np.errstate(invalid="ignore"):  # a row with a score of infinity is no row of a draw
        return (scores_r - down_r).astype(np.float32)


def in_front(scaled_rv: _Singles, peak_r: _Singles, edge_r: _Singles) -> tuple[_Places, _Places, _Places]:
    """Returns the rows and tokens of all that are in front, by row and then by token; and the rows with too many."""
    risen = np.flatnonzero(peak_r > edge_r)
    if not len(risen):
        return risen, risen, risen
    if 2 * len(risen) > len(peak_r):
        risen = np.arange(len(peak_r))  # to copy most of the rows would take as long as to look at all
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
    """Whether those that can win are few enough in each row, and can be told so; bool [R].

    Args:
        softmax: Of scaled logits, on the CPU.
        scores_r: Of one token of each row: scaled logit plus noise.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # then they are not few
        above_r = softmax.peak_b.numpy().astype(np.float64) - scores_r
        few_r: NDArray[np.bool_] = softmax.sum_b.numpy() * np.exp(above_r) <= MOST_RIVALS
        return few_r & (np.abs(scores_r) <= MOST_SCORE)


def rivals_of(keys: Keys, front: tuple[_Places, _Places], vocabulary: int, *, blocks: WordBlocks) -> CandidateTokens:
    """Returns every token whose score is at least its row's, and others; of rows that are few and not crowded.

    Args:
        keys: `row_keys` of the rows.
        front: Rows and tokens of those in front, by row.
        vocabulary: How many tokens each row has, at least `LEAST_VOCABULARY`.
        blocks: For so many rows and tokens.
    """
    below = bar(vocabulary)
    nobody = np.empty(0, np.intp)
    found = [(nobody, nobody, np.empty(0, np.uint32))]
    for block in blocks.pairs(keys):
        both = np.flatnonzero(block.words < below), block.places_of(*front)
        found += [(*block.tokens_at(places), ~block.words[places]) for places in both]
    rows, tokens, words = (np.concatenate(each) for each in zip(*found, strict=True))
    inside = tokens < vocabulary
    return CandidateTokens(rows[inside], tokens[inside], words[inside])


def _share(vocabulary: int) -> float:
    return _BY_THEIR_WORDS / vocabulary
