"""A budget for near-ties over many files of one node, so that they can't be steered file by file.

Where two sides' arithmetic differs in the last bits (bfloat16), honest files contain tokens that another machine would
have drawn otherwise. Each file alone may show several of them, so a node could choose all of its near-ties by their
reward and stay within every file's limits. Over many files the honest sum has a limit that lies close to its average.

Deviations come one by one and are about exponentially distributed. The sum of a Poisson number of them is beyond
`size * (sqrt(number) + sqrt(ln 1/p))**2` with a probability of at most p (Chernoff 1952; see
`rollouts.calibration.noise_model`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollouts.calibration.noise_model import FALSE_ALARM

if TYPE_CHECKING:
    from rollouts.calibration.limits import CheckLimits  # loads torch, and services count near-ties without it

MOST_FILES = 256
MOST_TOKENS = 1 << 18
"""Of a node's newest files that are counted together. Rates change while a model learns, so old files say little."""
DRIFT = 1.25
"""The rate of near-ties may be so much above the calibrated one: versions of one run differ by a fifth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTieCount:
    """What one file adds to its node's budget.

    Args:
        tokens: How many were replayed.
        deviations: The sum of their deviations, in scaled logits.
        rate: The calibrated rate of tokens that honest machines draw otherwise.
        size: The calibrated average deviation of one of these, in scaled logits.
    """

    tokens: int
    deviations: float
    rate: float
    size: float


def near_ties(*, tokens: int, deviations: float, limits: CheckLimits) -> NearTieCount | None:
    """What a file that passed replay adds; None if its limits leave nothing to steer (float32 on both sides).

    A calibration without `scatter` has no rate. Then the largest share and deviation of the honest files that were
    measured stand for it, which allows several times as much; a new calibration makes it close.
    """
    if limits.scatter is not None:
        rate, size = limits.scatter.mismatch_rate, limits.scatter.mismatch_size
    else:
        rate = limits.sampling.mismatch_share / limits.headroom
        size = limits.sampling.largest / limits.headroom
    return NearTieCount(tokens=tokens, deviations=deviations, rate=rate, size=size) if tokens and size > 0 else None


def newest(files: Sequence[NearTieCount]) -> int:
    """How many files at the end of the sequence count together: at least one, within both bounds."""
    count = tokens = 0
    for file in reversed(files[-MOST_FILES:]):
        tokens += file.tokens
        if count and tokens > MOST_TOKENS:
            break
        count += 1
    return count


def most_deviations(files: Sequence[NearTieCount]) -> float:
    """What the deviations of honest files sum to at most, but for one sum in 100,000, in scaled logits."""
    number = DRIFT * sum(file.rate * file.tokens for file in files)
    size = max(file.size for file in files)
    return float(size * (math.sqrt(number) + math.sqrt(math.log(1 / FALSE_ALARM))) ** 2)


def over_budget(files: Sequence[NearTieCount]) -> str:
    """Why files together are beyond the budget, in words; empty if they are not."""
    found, most = sum(file.deviations for file in files), most_deviations(files)
    if found <= most:
        return ""
    tokens = sum(file.tokens for file in files)
    return (
        f"deviations of {tokens} tokens in the node's newest {len(files)} files sum to {found:.3g}, which is "
        f"{1e4 * found / tokens:.3g} per 10,000 tokens; the limit is {most:.3g}"
    )
