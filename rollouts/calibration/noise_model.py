"""Statistical model of honest files, for limits that depend on a file's size.

A simpler limit is the largest value among honest files times a headroom, the same for files of every size. In bfloat16
that limit is wide, because a single near-tie, or one group with unusually large rounding errors, determines it.
Averages and sums over a file follow distributions with few parameters. Therefore this module computes limits for a
file's size and a false-alarm rate:

- The mean distance of proofs over independent groups follows a gamma distribution. Its quantile is approximated through
  the cube root, which is nearly normal (Wilson and Hilferty 1931).
- Replay deviations come from near-ties, occur independently and are exponential. If their number follows a Poisson
  distribution with mean n, and their mean size is m, their sum exceeds s >= n·m with a probability of at most
  exp(-(√(s/m) - √n)²) (Chernoff 1952).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

FALSE_ALARM = 1e-5
"""Rate at which honest files exceed one of these limits, if their figures follow the distributions above."""
_DEVIATIONS = 4.265
"""Quantile of the normal distribution, in standard deviations, for `FALSE_ALARM`."""
_NATS = math.log(1 / FALSE_ALARM)
_ERRORS = 2.0
"""Measured parameters are widened by this many standard errors, because few groups measure them inaccurately."""
_LEAST = 0.05
"""Lower bound of the gamma shape; below it the cube-root approximation fails."""

_MOST = 1e9
_Limit = Annotated[float, Field(ge=0, le=_MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """Figures of one group's rows in one honest file.

    Args:
        rows: Number of rows computed again.
        distance: Mean distance of the proofs' points, in units of the last place.
        tokens: Number of replayed tokens.
        mismatches: Number of tokens that replay draws differently.
        deviations: Sum of all deviations, in scaled logits.
    """

    rows: int
    distance: float
    tokens: int
    mismatches: int
    deviations: float


def equally_large(sizes: Iterable[int]) -> float:
    """Returns the number of equally large groups whose average has a similar tail.

    The number is the total size divided by the largest size: unequal weights lengthen the tail of the average, however
    many small groups there are (Bock et al. 1987). Kish's effective sample size considers the variance alone and is
    too large here.
    """
    every = [*sizes]
    largest = max(every, default=0)
    return sum(every) / largest if largest else 0.0


class HonestNoise(BaseModel):
    """Distribution parameters of honest files for one model, prover and verifier."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    distance_mean: _Limit
    """Mean proof distance over all groups, in units of the last place."""
    distance_shape: Annotated[float, Field(gt=0, le=_MOST)]
    """Gamma shape of one group's distance: (mean / standard deviation) squared."""
    mismatch_rate: Annotated[float, Field(ge=0, le=1)]
    """Rate per token of near-ties that replay draws differently."""
    mismatch_size: _Limit
    """Mean deviation of such a near-tie, in scaled logits."""
    groups: Annotated[int, Field(ge=2)]
    """Number of measured groups."""
    group_rows: Annotated[float, Field(ge=1)]
    """Mean number of answers per measured group."""

    @classmethod
    def around(cls, honest: Sequence[GroupFigures]) -> Self | None:
        """Estimates the parameters from honest groups, and widens them.

        The estimates are widened by `_ERRORS` standard errors, and then until no measured group exceeds its limits.

        Returns:
            None if there are fewer than two groups, or if the groups have no variance, no mismatches or no deviations.
        """
        count, tokens = len(honest), sum(one.tokens for one in honest)
        mean = sum(one.distance for one in honest) / max(1, count)
        variance = sum((one.distance - mean) ** 2 for one in honest) / max(1, count - 1)
        mismatches, deviations = sum(one.mismatches for one in honest), sum(one.deviations for one in honest)
        if count < 2 or not variance or not mismatches or not deviations:
            return None
        found = cls(
            distance_mean=mean + _ERRORS * math.sqrt(variance / count),
            distance_shape=min(_MOST, mean**2 / (variance * (1 + _ERRORS * math.sqrt(2 / count)))),
            mismatch_rate=min(1.0, (mismatches + _ERRORS * math.sqrt(mismatches)) / tokens),
            mismatch_size=deviations / mismatches * (1 + _ERRORS / math.sqrt(mismatches)),
            groups=count,
            group_rows=sum(one.rows for one in honest) / count,
        )
        return found.covering(honest)

    def covering(self, honest: Sequence[GroupFigures]) -> Self:
        """Returns the parameters widened so that none of these groups exceeds its limits."""
        distance = max(one.distance / self.distance_of(rows=one.rows, groups=1) for one in honest)
        deviations = max(one.deviations / self.deviations_of(one.tokens) for one in honest)
        return self.model_copy(
            update={
                "distance_mean": self.distance_mean * max(1.0, distance),
                "mismatch_size": self.mismatch_size * max(1.0, deviations),
            }
        )

    def distance_of(self, *, rows: int, groups: float) -> float:
        """Returns the limit of the mean proof distance, in units of the last place.

        `groups` counts equally large groups; for unequal groups pass the result of `equally_large`. Rows of one group
        share their prompt and are not independent. If the verifier drew only some rows of a group, they count as that
        fraction of a group, which is conservative.
        """
        shape = max(_LEAST, self.distance_shape * min(float(groups), rows / self.group_rows))
        return self.distance_mean * (1 - 1 / (9 * shape) + _DEVIATIONS / (3 * math.sqrt(shape))) ** 3

    def deviations_of(self, tokens: int) -> float:
        """Returns the limit of the sum of deviations of this many tokens, in scaled logits."""
        return self.mismatch_size * (math.sqrt(self.mismatch_rate * tokens) + math.sqrt(_NATS)) ** 2

    def widened(self, factor: float) -> Self:
        """Returns the parameters with both limits multiplied by `factor`."""
        changes = {"distance_mean": factor * self.distance_mean, "mismatch_size": factor * self.mismatch_size}
        return self.model_copy(update=changes)

    def widest(self, other: Self) -> Self:
        """Returns parameters that allow everything that `self` or `other` allows."""
        return type(self)(
            distance_mean=max(self.distance_mean, other.distance_mean),
            distance_shape=min(self.distance_shape, other.distance_shape),
            mismatch_rate=max(self.mismatch_rate, other.mismatch_rate),
            mismatch_size=max(self.mismatch_size, other.mismatch_size),
            groups=self.groups + other.groups,
            group_rows=max(self.group_rows, other.group_rows),
        )
