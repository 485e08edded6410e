"""Draws of a step whose rows may have different sampling parameters.

Shapes: b rows, v tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from rollouts.sampling.noise import Keys
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import DrawnTokens
from rollouts.sampling.seeded_draw import draw_seeded

Draw = Callable[[torch.Tensor, Keys, SamplingParameters], DrawnTokens]
"""Draws a token for each row of logits [b, v] with the same parameters."""


def draw_rows(
    logits_bv: torch.Tensor, keys: Keys, groups: Mapping[SamplingParameters, Sequence[int]], *, draw: Draw = draw_seeded
) -> DrawnTokens:
    """Draws a token for each row with the noise of its key and its own parameters.

    Args:
        logits_bv: Logits of any float type, on any device.
        keys: `row_keys` of the rows.
        groups: `rows_by_parameters` of the rows.
        draw: Draws the rows of one group.

    Raises:
        NotANumber: `draw` found a row with NaN or +inf, or only -inf.
    """
    if len(groups) == 1:
        return draw(logits_bv, keys, next(iter(groups)))
    tokens_b = torch.empty(len(logits_bv), dtype=torch.int64, device=logits_bv.device)
    logprobs_b = torch.empty(len(logits_bv), dtype=torch.float32, device=logits_bv.device)
    for parameters, rows in groups.items():
        drawn = draw(logits_bv[rows], keys[rows], parameters)
        tokens_b[rows], logprobs_b[rows] = drawn.tokens, drawn.logprobs
    return DrawnTokens(tokens_b, logprobs_b)


def rows_by_parameters(parameters: Sequence[SamplingParameters]) -> dict[SamplingParameters, list[int]]:
    """Returns, for each kind of parameters, the rows that have them; the limit of new tokens makes no difference."""
    first = parameters[0]
    if all(one is first for one in parameters):  # spares the usual case a hash per row and step
        return {first: list(range(len(parameters)))}
    groups: dict[tuple[float, float, int], tuple[SamplingParameters, list[int]]] = {}
    for row, one in enumerate(parameters):
        groups.setdefault(one.of_draws, (one, []))[1].append(row)
    return dict(groups.values())
