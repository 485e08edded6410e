"""Draws of a step whose rows may have different sampling parameters.

Shapes: b rows, v tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollouts.sampling.noise import Keys
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import DrawnTokens
from rollouts.sampling.seeded_draw import draw_seeded


def draw_rows(logits_bv: torch.Tensor, keys: Keys, parameters: Sequence[SamplingParameters]) -> DrawnTokens:
    """Draws a token for each row with the noise of its key and its own parameters.

    Args:
        logits_bv: Logits of any float type, on any device.
        keys: `row_keys` of the rows.
        parameters: Sampling parameters of each row; usually one object for all.

    Raises:
        NotANumber: A row has NaN or +inf, or only -inf.
    """
    groups = rows_by_parameters(parameters)
    if len(groups) == 1:
        return draw_seeded(logits_bv, keys, parameters[0])
    tokens_b = torch.empty(len(parameters), dtype=torch.int64, device=logits_bv.device)
    logprobs_b = torch.empty(len(parameters), dtype=torch.float32, device=logits_bv.device)
    for kind, rows in groups.items():
        drawn = draw_seeded(logits_bv[rows], keys[rows], kind)
        tokens_b[rows], logprobs_b[rows] = drawn.tokens, drawn.logprobs
    return DrawnTokens(tokens_b, logprobs_b)


def rows_by_parameters(parameters: Sequence[SamplingParameters]) -> dict[SamplingParameters, list[int]]:
    """Returns the rows of each kind of parameters."""
    first = parameters[0]
    if all(one is first for one in parameters):  # spares the usual case a hash per row and step
        return {first: list(range(len(parameters)))}
    groups: dict[SamplingParameters, list[int]] = {}
    for row, one in enumerate(parameters):
        groups.setdefault(one, []).append(row)
    return groups
