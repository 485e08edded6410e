"""Which tokens can have a better score than the recorded one: a few of the vocabulary, found without a logarithm.

A token of scaled logit l and word w beats a score s if l + g(w) ≥ s. With u = (w + ½)·2⁻³² and g = -log(-log u) that is

    1 - u  ≤  -log u  ≤  exp(l - s),        so        2³² - 1 - w  <  2³² · exp(l - s)

The left side is the word with its bits turned over, and the right one is the token's weight in the softmax times a
number per row. So one comparison leaves out what can't win, and loses nothing. On average so many are left as the sum
of exp(l - s) over the vocabulary says; where s is a draw's, that is exponentially distributed with mean 1. Only theirs
is the noise that is computed.

Shapes: r rows, v tokens of the vocabulary, n rivals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollouts.sampling.noise import Keys, WordBlocks, gumbel_numpy
from rollouts.sampling.softmax import Softmax

MOST_RIVALS = 64.0
"""On average, of a row; then it is still cheaper than to compute all noise. A draw has more once in 10²⁷ times."""
MOST_SCORE = 2.0**16
"""Beyond it scores are too coarse to be compared so."""

_SLACK = 1e-4
_SLACK_PER_SCORE = 2.0**-20
"""How much wider the comparison is made, in units of scores: at least, and for each unit of |s|. A score is wrong by
one rounding, 2⁻²⁴ of it. Weights, noise and thresholds of tokens that could win, whose logits are at most 28 below the
largest, are wrong by less than 1e-5 together."""

_Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rivals:
    """Tokens that may have a score as good as the given one, by row and then by token.

    Args:
        rows: int64 [N].
        tokens: int64 [N].
        words: uint32 [N].
    """

    rows: NDArray[np.intp]
    tokens: NDArray[np.intp]
    words: NDArray[np.uint32]

    @property
    def noise(self) -> _Singles:
        """Float32 [N]."""
        return gumbel_numpy(self.words.astype(np.float64))


def thresholds(softmax: Softmax, scores_r: _Singles) -> _Singles:
    """Returns 2³²·exp(peak - s) of each row, float32 [R]; -1 where rivals are too many, or can't be told so.

    Args:
        softmax: Of scaled logits, on the CPU.
        scores_r: Of one token of each row: scaled logit plus noise.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # where the result is not used
        above_r = softmax.peak_b.numpy().astype(np.float64) - scores_r
        size_r = np.abs(scores_r)
        few_r = (softmax.sum_b.numpy() * np.exp(above_r) <= MOST_RIVALS) & (size_r <= MOST_SCORE)
        most_r = np.exp2(32.0) * np.exp(above_r + (_SLACK + _SLACK_PER_SCORE * size_r))
        return np.where(few_r, most_r, -1.0).astype(np.float32)


def rivals_of(
    weights_rv: _Singles, thresholds_r: _Singles, keys: Keys, *, blocks: WordBlocks, room_rv: _Singles
) -> Rivals:
    """Returns every token whose score is at least its row's, and few others; of rows with a threshold.

    Args:
        weights_rv: Of the softmax; they are written over.
        thresholds_r: As above.
        keys: `row_keys` of the same rows.
        blocks: For so many rows and tokens.
        room_rv: Memory.
    """
    rows, tokens, found = [], [], []
    for row, token, inverted in blocks.of(keys, inverted=True):
        limits = weights_rv[row, token]
        limits *= thresholds_r[row, None]
        singles = room_rv[row, token]
        singles[...] = inverted
        its_rows, its_tokens = np.divmod(np.flatnonzero(singles <= limits), limits.shape[1])
        rows.append(its_rows + row.start)
        tokens.append(its_tokens + token.start)
        found.append(~inverted[its_rows, its_tokens])
    return Rivals(np.concatenate(rows), np.concatenate(tokens), np.concatenate(found))
