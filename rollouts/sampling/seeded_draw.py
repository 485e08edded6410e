"""Draws tokens with seeded noise; on a CPU, computes the noise of a few candidates only.

The largest score of a row is its log-sum-exp plus a Gumbel variable G (Gumbel-max trick). So a token with a score below
the log-sum-exp minus 2 (the floor) is drawn only if G < -2, which has the probability exp(-e²), 1 in 1,600.
`candidate_tokens` lists every token that reaches the floor, without a logarithm. If any token reaches the floor, the
best one is the token that `sampler.draw` would draw, bit for bit; otherwise this module computes the row's whole noise.

Shapes: b rows, v tokens of the vocabulary, n candidates.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rollouts.sampling.candidate_tokens import MOST_SCORE, edges, in_front, rivals_of
from rollouts.sampling.noise import Keys, WordBlocks, noise
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import DrawnTokens, draw, log_sums, scale

LEAST_VOCABULARY = 2048
LEAST_LOGITS = 1 << 16
"""Smallest vocabulary and smallest batch (rows times vocabulary) for which candidates are cheaper than all noise. With
49,152 tokens a draw from candidates takes half of the time of a draw with all noise (`python -m
benchmarks.sampling`).
"""

_BELOW_LOG_SUM = 2.0
_BY_THEIR_WORDS = 128
"""Expected candidates per row by their words alone. Tokens of a probability above 128 · e⁻² / vocabulary are candidates
for every value of their words; few tokens have such a probability, even if logits are nearly flat."""


def draw_seeded(logits_bv: torch.Tensor, keys: Keys, parameters: SamplingParameters) -> DrawnTokens:
    """Draws a token for each row with the noise of its key; same result as `draw` with `noise`.

    Args:
        logits_bv: Logits of any float type, on any device.
        keys: `row_keys` of the rows.
        parameters: The lease's sampling parameters.

    Raises:
        NotANumber: A row has NaN or +inf, or only -inf.
    """
    vocabulary, device = logits_bv.shape[1], logits_bv.device
    small = vocabulary < LEAST_VOCABULARY or logits_bv.numel() < LEAST_LOGITS
    if small or parameters.masks or device.type != "cpu":
        return draw(logits_bv, noise(keys, vocabulary, device=device), parameters)
    scaled_bv = scale(logits_bv, parameters)
    total_b = log_sums(scaled_bv)
    tokens_b, undecided = _best_candidates(scaled_bv.numpy(), total_b.numpy(), keys)
    if len(undecided):
        drawn = draw(logits_bv[undecided], noise(keys[undecided], vocabulary), parameters)
        tokens_b[undecided] = drawn.tokens.numpy()
    tokens = torch.from_numpy(tokens_b)
    return DrawnTokens(tokens, scaled_bv.gather(1, tokens[:, None])[:, 0] - total_b)


def _best_candidates(
    scaled_bv: NDArray[np.float32], total_b: NDArray[np.float32], keys: Keys
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Returns the drawn tokens, int64 [B], and the rows that the candidates leave undecided."""
    rows, vocabulary = scaled_bv.shape
    floor_b = total_b - np.float32(_BELOW_LOG_SUM)
    edge_b = edges(floor_b, vocabulary, by_words=_BY_THEIR_WORDS)
    *front, crowded = in_front(scaled_bv, scaled_bv.max(1), edge_b)
    blocks = WordBlocks(rows, vocabulary)
    found = rivals_of(keys, (front[0], front[1]), vocabulary, blocks=blocks, by_words=_BY_THEIR_WORDS)
    scores_n = scaled_bv[found.rows, found.tokens] + found.noise
    best_b = np.full(rows, -np.inf, np.float32)
    np.maximum.at(best_b, found.rows, scores_n)
    winners = scores_n == best_b[found.rows]
    tokens_b = np.full(rows, vocabulary, np.int64)
    np.minimum.at(tokens_b, found.rows[winners], found.tokens[winners])  # ties: the lowest token
    decided_b = (best_b >= floor_b) & (np.abs(floor_b) <= MOST_SCORE)
    decided_b[crowded] = False
    return tokens_b, np.flatnonzero(~decided_b)
