"""Limits near-ties over many files of one node, so that a node can't steer its samples file by file.

With inexact arithmetic (bfloat16), honest files contain tokens that another machine would have drawn differently. A
single file may contain several such tokens, so a node could choose between nearly tied tokens by reward and stay within
every file's limits. Over many files, the sum of deviations of honest work stays close to its mean and can be bounded
tightly.

Deviations occur independently and are roughly exponential. The sum of a Poisson number of them exceeds
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
    from rollouts.calibration.limits import (
        CheckLimits,
    )  # loads torch, which near-ties do not need

MOST_FILES = 256
MOST_TOKENS = 1 << 18
"""Maximum number of a node's newest files, and of their tokens, that are counted together. Rates change as a model
learns, so older files are not relevant."""
DRIFT = 1.25
"""Factor by which the near-tie rate may exceed the calibrated rate, because the rate differs by up to a fifth between
the versions of one run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTieCount:
    """One file's contribution to its node's near-tie budget.

    Args:
        tokens: Number of replayed tokens.
        deviations: Sum of their deviations, in scaled logits.
        rate: Calibrated rate of tokens that honest machines draw differently.
        size: Calibrated mean deviation of such a token, in scaled logits.
    """

    tokens: int
    deviations: float
    rate: float
    size: float


def near_ties(*, tokens: int, deviations: float, limits: CheckLimits) -> NearTieCount | None:
    """Returns a file's contribution; None if no token was replayed, or if the limits allow no deviation.

    If `limits.scatter` is None, no near-tie rate was measured. The function then uses the largest mismatch share and
    the largest deviation of the measured honest files. These figures allow several times as many deviations as a
    measured rate does; a new calibration tightens the budget.
    """
    if limits.scatter is not None:
        rate, size = limits.scatter.mismatch_rate, limits.scatter.mismatch_size
    else:
        rate = limits.sampling.mismatch_share / limits.headroom
        size = limits.sampling.largest / limits.headroom
    return NearTieCount(tokens=tokens, deviations=deviations, rate=rate, size=size) if tokens and size > 0 else None


def newest(files: Sequence[NearTieCount]) -> int:
    """Returns how many of the newest files (last in the sequence) count together.

    The newest file always counts. Older files count as long as all of them together stay within `MOST_FILES` and
    `MOST_TOKENS`.
    """
    count = tokens = 0
    for file in reversed(files[-MOST_FILES:]):
        tokens += file.tokens
        if count and tokens > MOST_TOKENS:
            break
        count += 1
    return count


def most_deviations(files: Sequence[NearTieCount]) -> float:
    """Returns the limit of the sum of deviations, in scaled logits; one honest sum in 100,000 exceeds it."""
    number = DRIFT * sum(file.rate * file.tokens for file in files)
    size = max(file.size for file in files)
    return float(size * (math.sqrt(number) + math.sqrt(math.log(1 / FALSE_ALARM))) ** 2)


def over_budget(files: Sequence[NearTieCount]) -> str:
    """Returns a message if the files together exceed the budget; otherwise an empty string."""
    found, most = sum(file.deviations for file in files), most_deviations(files)
    if found <= most:
        return ""
    tokens = sum(file.tokens for file in files)
    return (
        f"deviations of {tokens} tokens in the node's newest {len(files)} files sum to {found:.3g}, which is "
        f"{1e4 * found / tokens:.3g} per 10,000 tokens; the limit is {most:.3g}"
    )
