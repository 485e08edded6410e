"""Compares a recorded answer with the answer that its seed draws.

The policy's logits (from a prefill of the whole answer) and the seed determine the token at each position. An honest
answer matches except at near-ties, because the two machines' arithmetic differs in the last bits. Answers with other
sampling parameters or weights, and selected answers, deviate by much, or often, or by a little at many positions. Three
figures of `Replay` capture these cases: the largest deviation, the number of mismatches, and the largest sum of one
sample's deviations. A limit of that sum prevents a node from choosing its preferred token at many near-ties of one
sample.

Shapes: t positions of one answer, r rows of one or more answers, v tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import InvalidInput
from rollouts.sampling.candidate_tokens import LEAST_VOCABULARY, are_few, edges, in_front, rivals_of
from rollouts.sampling.likelihood import surprise
from rollouts.sampling.mask import mask_of
from rollouts.sampling.noise import Keys, WordBlocks, noise, noise_at, row_keys, stream
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import first_largest, scale
from rollouts.sampling.softmax import Softmax, weigh

_VALUES_AT_ONCE = 1 << 17
"""Scores per block on a CPU: an array of them has half a MiB in float32, and several such arrays fit into a core's L2
cache. The block size also bounds the memory that a long answer needs."""
_VALUES_AT_ONCE_ELSEWHERE = 1 << 21

MOST_DEVIATION = 1e6
"""Maximum deviation, also used for a token that can't be drawn at all, so that all figures are finite."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The replay of one answer, or of a part of one.

    Args:
        gaps: float32 [T], difference between the best score within the mask and the recorded token's score, at least 0.
            For a better token that the other machine's mask may have excluded, the token's margin
            (`rollouts.sampling.mask`) counts if it is smaller than the difference.
        outside: float32 [T], margin by which the recorded token lies outside the mask; 0 within it.
        mismatches: bool [T], whether replay draws another token.
        logprobs: float32 [T], the recorded tokens' log-probabilities by these logits.
        excess: float32 [T], log-probabilities minus the expected log-probability of a draw
            (`rollouts.sampling.likelihood`).
        variance: float32 [T], variance of a draw's log-probability.
    """

    gaps: NDArray[np.float32]
    outside: NDArray[np.float32]
    mismatches: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    excess: NDArray[np.float32]
    variance: NDArray[np.float32]

    @property
    def deviations(self) -> NDArray[np.float32]:
        """Sum of `gaps` and `outside`, float32 [T], in units of scaled logits."""
        return self.gaps + self.outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Figures over any number of answers, for comparison with limits.

    Args:
        tokens: Number of replayed tokens.
        mismatches: Number of tokens that replay draws differently.
        largest: The largest deviation of a token.
        largest_sum: The largest sum of deviations of a sample.
        sum: Sum of all deviations.
    """

    tokens: int
    mismatches: int
    largest: float
    largest_sum: float
    sum: float

    @property
    def mismatch_share(self) -> float:
        """Mismatches per token; 0 without tokens."""
        return self.mismatches / self.tokens if self.tokens else 0.0


def summarise(samples: Iterable[Gaps]) -> Replay:
    """Returns the figures of whole samples, one `Gaps` each."""
    tokens = mismatches = 0
    largest = largest_sum = total = 0.0
    for sample in samples:
        deviations = sample.deviations
        tokens += len(deviations)
        mismatches += int(sample.mismatches.sum())
        largest = max(largest, float(deviations.max(initial=0.0)))
        largest_sum = max(largest_sum, own := float(deviations.sum(dtype=np.float64)))
        total += own
    return Replay(tokens=tokens, mismatches=mismatches, largest=largest, largest_sum=largest_sum, sum=total)


def gaps(
    logits_tv: torch.Tensor,
    tokens: Sequence[int],
    *,
    seed: bytes,
    sample: int,
    parameters: SamplingParameters,
    start: int = 0,
) -> Gaps:
    """Replays one answer, or a part of one.

    Args:
        logits_tv: The policy's logits before each token, on any device, of any float type.
        tokens: The T recorded tokens.
        seed: The slot's seed.
        sample: The sample's number in the slot.
        parameters: The lease's sampling parameters.
        start: Position of the first of these tokens in the answer.

    Raises:
        InvalidInput: The numbers of logits and tokens differ, or a token is outside the vocabulary.
        NotANumber: A row of logits can't be normalised.
    """
    keys = row_keys([stream(seed, sample)] * len(tokens), range(start, start + len(tokens)))
    return gaps_of_rows(logits_tv, tokens, keys, parameters)


def gaps_of_rows(logits_rv: torch.Tensor, tokens: Sequence[int], keys: Keys, parameters: SamplingParameters) -> Gaps:
    """Replays rows that may belong to different samples, such as those of a packed prefill.

    Args:
        logits_rv: The policy's logits before each token, on any device, of any float type.
        tokens: The recorded token of each row.
        keys: Result of `row_keys` for the same rows.
        parameters: The lease's sampling parameters.

    Raises:
        InvalidInput: The numbers of rows differ, or a token is outside the vocabulary.
        NotANumber: A row of logits can't be normalised.
    """
    rows, vocabulary = logits_rv.shape
    if not rows == len(tokens) == len(keys):
        raise InvalidInput(f"{rows} rows of logits, {len(tokens)} tokens and {len(keys)} keys can't be replayed")
    if rows and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise InvalidInput(f"a token outside the vocabulary of {vocabulary} can't have been drawn")
    tokens_r = torch.tensor(tokens, dtype=torch.int64)
    plainly = parameters.masks or vocabulary < LEAST_VOCABULARY or logits_rv.device.type != "cpu"
    joined = (_against_all if plainly else _against_rivals)(logits_rv, tokens_r, keys, parameters).numpy()
    return Gaps(
        gaps=joined[0],
        outside=joined[1],
        mismatches=joined[2].astype(np.bool_),
        logprobs=joined[3],
        excess=joined[4],
        variance=joined[5],
    )


def _against_rivals(
    logits_rv: torch.Tensor, tokens_r: torch.Tensor, keys: Keys, parameters: SamplingParameters
) -> torch.Tensor:
    """Returns the arrays of `Gaps`, float32 [6, R]; bit-identical to `_against_all`, but computes less noise."""
    rows, vocabulary = logits_rv.shape
    own_r = scale(logits_rv.gather(1, tokens_r[:, None])[:, 0], parameters)
    score_r = (own_r + torch.from_numpy(noise_at(keys, tokens_r.numpy()))).numpy()
    softmax, front, crowded = _weighed(logits_rv, score_r, parameters)
    blocks = WordBlocks(min(rows, max(1, _VALUES_AT_ONCE // vocabulary)), vocabulary)
    rivals = rivals_of(keys, front, vocabulary, blocks=blocks)
    with np.errstate(invalid="ignore"):  # rows with infinities are recomputed below
        lead_n = scale(logits_rv[rivals.rows, rivals.tokens], parameters).numpy() + rivals.noise - score_r[rivals.rows]
    wins_n = (lead_n > 0) | ((lead_n == 0) & (rivals.tokens < tokens_r.numpy()[rivals.rows]))
    gap_r, mismatch_r = np.zeros(rows, np.float32), torch.zeros(rows, dtype=torch.bool)
    np.maximum.at(gap_r, rivals.rows[wins_n], lead_n[wins_n])
    mismatch_r[rivals.rows[wins_n]] = True
    found = torch.stack(_figures(torch.from_numpy(gap_r), torch.zeros(rows), mismatch_r, own_r, softmax))
    plainly_r = ~are_few(softmax, score_r)
    plainly_r[crowded] = True
    if len(many := np.flatnonzero(plainly_r)):
        found[:, many] = _against_all(logits_rv[many], tokens_r[many], keys[many], parameters)
    return found


def _weighed(
    logits_rv: torch.Tensor, score_r: NDArray[np.float32], parameters: SamplingParameters
) -> tuple[Softmax, tuple[NDArray[np.intp], NDArray[np.intp]], NDArray[np.intp]]:
    """Computes each row's softmax sums and finds its tokens in front, while the row is in the processor's cache.

    Returns:
        The sums; rows and tokens of the tokens in front; and the rows that have too many tokens in front to list.
    """
    rows, vocabulary = logits_rv.shape
    softmax, edge_r = Softmax.room(rows, device=logits_rv.device), edges(score_r, vocabulary)
    step = max(1, _VALUES_AT_ONCE // vocabulary)
    room_2rv = torch.empty((2, min(rows, step), vocabulary))
    found: list[tuple[NDArray[np.intp], ...]] = [(np.empty(0, np.intp),) * 3]
    for start in range(0, rows, step):
        here = slice(start, min(start + step, rows))
        scaled_rv, sums = scale(logits_rv[here], parameters), softmax[here]
        weigh(scaled_rv, sums, room_2rv[:, : len(scaled_rv)])
        its_rows, tokens, crowded = in_front(scaled_rv.numpy(), sums.peak_b.numpy(), edge_r[here])
        found.append((its_rows + start, tokens, crowded + start))
    front_rows, front_tokens, crowded = (np.concatenate(each) for each in zip(*found, strict=True))
    return softmax, (front_rows, front_tokens), crowded


def _against_all(
    logits_rv: torch.Tensor, tokens_r: torch.Tensor, keys: Keys, parameters: SamplingParameters
) -> torch.Tensor:
    """Returns the arrays of `Gaps`, float32 [6, R], from the noise of every token.

    Unlike `_against_rivals`, this function supports every device and masks.
    """
    step = max(
        1, (_VALUES_AT_ONCE if logits_rv.device.type == "cpu" else _VALUES_AT_ONCE_ELSEWHERE) // logits_rv.shape[1]
    )
    parts = [
        _stretch(logits_rv[at : at + step], tokens_r[at : at + step], keys[at : at + step], parameters)
        for at in range(0, len(keys), step)
    ]
    return torch.cat([torch.empty(6, 0), *parts], dim=1)


def _stretch(
    logits_rv: torch.Tensor, tokens_r: torch.Tensor, keys: Keys, parameters: SamplingParameters
) -> torch.Tensor:
    scaled_rv = scale(logits_rv, parameters)
    softmax = Softmax.room(len(keys), device=scaled_rv.device)
    weigh(scaled_rv, softmax, scaled_rv.new_empty((2, *scaled_rv.shape)))
    scores_rv = scaled_rv + noise(keys, scaled_rv.shape[1], device=scaled_rv.device)
    tokens_r = tokens_r.to(scaled_rv.device)
    own_r = scaled_rv.gather(1, tokens_r[:, None])[:, 0]
    own_score_r = scores_rv.gather(1, tokens_r[:, None])[:, 0]
    if parameters.masks:
        gap_r, outside_r = _within_mask(scaled_rv, own_r, scores_rv, own_score_r, parameters)
        best_r = first_largest(scores_rv)
    else:
        best_r = first_largest(scores_rv)
        gap_r = scores_rv.gather(1, best_r[:, None])[:, 0] - own_score_r
        outside_r = torch.zeros_like(own_r)
    return torch.stack(_figures(gap_r, outside_r, best_r != tokens_r, own_r, softmax)).cpu()


def _figures(
    gap_r: torch.Tensor, outside_r: torch.Tensor, mismatch_r: torch.Tensor, own_r: torch.Tensor, softmax: Softmax
) -> tuple[torch.Tensor, ...]:
    bounded = (gap_r.clamp_max(MOST_DEVIATION), outside_r.clamp(0.0, MOST_DEVIATION))
    logprob_r = (own_r - softmax.totals()).clamp_min(-MOST_DEVIATION)
    return (*bounded, mismatch_r.float(), logprob_r, *surprise(softmax, own_r))


def _within_mask(
    scaled_rv: torch.Tensor,
    own_r: torch.Tensor,
    scores_rv: torch.Tensor,
    own_score_r: torch.Tensor,
    parameters: SamplingParameters,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns gaps and distances outside the mask; masks `scores_rv` in place.

    A token with a better score counts by its score's lead, or by its margin if the margin is smaller, because the other
    machine's mask may have excluded the token.
    """
    mask = mask_of(scaled_rv, parameters)
    scores_rv.masked_fill_(scaled_rv < mask.edge_b[:, None], -torch.inf)
    every_r = torch.arange(len(own_r), device=own_r.device)
    outside_r = -mask.margins(every_r, own_r[:, None])[:, 0]
    gap_r = torch.zeros_like(own_r)
    beaten = torch.nonzero(scores_rv.amax(1) > own_score_r)[:, 0]  # an honest file has few such rows
    out = scores_rv[beaten] == -torch.inf
    excess = (scores_rv[beaten] - own_score_r[beaten, None]).masked_fill_(out, 0.0)
    gap_r[beaten] = torch.minimum(excess, mask.margins(beaten, scaled_rv[beaten])).amax(1).clamp_min_(0.0)
    return gap_r, outside_r
