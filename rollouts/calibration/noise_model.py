"""How honest files scatter: a file's average may be off by less, the more it is an average of.

The largest figure of honest files, times a headroom, is one number for files of every size, and in bfloat16 a wide
one: what made it was a single near-tie, or one group whose states are hard to round. Averages and sums of a whole file
have a shape that few numbers describe, so their limits can be drawn for its size, and for a rate of false alarms:

- The distance of proofs, averaged over groups that have nothing to do with each other, follows a gamma distribution.
  Its quantile is taken by the cube root, which is all but normal (Wilson and Hilferty 1931).
- Deviations of replay come one by one, as near-ties do, and are exponentially distributed. The sum of a Poisson number
  of them is beyond s with a probability of at most exp(-(√(s/size) - √number)²) (Chernoff 1952).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

FALSE_ALARM = 1e-5
"""How often an honest file is beyond one of these limits, as far as its figures have the shapes above."""
_DEVIATIONS = 4.265
"""So many standard deviations of a normal figure are exceeded that often."""
_NATS = math.log(1 / FALSE_ALARM)
_ERRORS = 2.0
"""What was measured is taken as so many standard errors wider than it was: few groups say little."""
_LEAST = 0.05
"""Of what a shape is multiplied with: below it the cube root is no approximation any more."""

_MOST = 1e9
_Limit = Annotated[float, Field(ge=0, le=_MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """What the rows of one group of one honest file show together.

    Args:
        rows: How many were computed again.
        distance: Of all their proofs' points, on average, in units of the last place.
        tokens: How many were replayed.
        mismatches: At how many another token had to come.
        deviations: The sum of all deviations, in scaled logits.
    """

    rows: int
    distance: float
    tokens: int
    mismatches: int
    deviations: float


def equally_large(sizes: Iterable[int]) -> float:
    """Of how many equally large groups the average is beyond a high limit at least as often as that of these.

    It is as often as the largest of them goes into all: weights that are less alike make long tails longer, however
    many small groups stand beside a large one (Bock et al. 1987). To count by variance alone (Kish) makes too many.
    """
    every = [*sizes]
    largest = max(every, default=0)
    return sum(every) / largest if largest else 0.0


class HonestNoise(BaseModel):
    """The shapes of honest files of one model, prover and verifier."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    distance_mean: _Limit
    """Of proofs, over all groups, in units of the last place."""
    distance_shape: Annotated[float, Field(gt=0, le=_MOST)]
    """Of one group: its mean over its standard deviation, squared."""
    mismatch_rate: Annotated[float, Field(ge=0, le=1)]
    """Near-ties that were drawn otherwise, for each token."""
    mismatch_size: _Limit
    """The deviation of one of these, on average, in scaled logits."""
    groups: Annotated[int, Field(ge=2)]
    """How many were measured."""
    group_rows: Annotated[float, Field(ge=1)]
    """How many answers one had, on average."""

    @classmethod
    def around(cls, honest: Sequence[GroupFigures]) -> Self | None:
        """What groups of honest files show, a little wider, and wide enough for each of them.

        Returns:
            None if they are too few, or agree to the bit: then there is no shape to measure.
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
        """The same, and wider where one of these groups would be beyond it."""
        distance = max(one.distance / self.distance_of(rows=one.rows, groups=1) for one in honest)
        deviations = max(one.deviations / self.deviations_of(one.tokens) for one in honest)
        return self.model_copy(
            update={
                "distance_mean": self.distance_mean * max(1.0, distance),
                "mismatch_size": self.mismatch_size * max(1.0, deviations),
            }
        )

    def distance_of(self, *, rows: int, groups: float) -> float:
        """The most that proofs of so many rows, of so many groups, may be off on average, in units of the last place.

        Groups are equally large ones: of others there are as many as `equally_large` says.
        Rows of a group begin alike and are no independent samples; where few of each were drawn they count as the part
        of a group that they are, which is less than they tell.
        """
        shape = max(_LEAST, self.distance_shape * min(float(groups), rows / self.group_rows))
        return self.distance_mean * (1 - 1 / (9 * shape) + _DEVIATIONS / (3 * math.sqrt(shape))) ** 3

    def deviations_of(self, tokens: int) -> float:
        """The most that the deviations of so many tokens may sum to, in scaled logits."""
        return self.mismatch_size * (math.sqrt(self.mismatch_rate * tokens) + math.sqrt(_NATS)) ** 2

    def widened(self, factor: float) -> Self:
        """Both limits `factor` times as wide."""
        changes = {"distance_mean": factor * self.distance_mean, "mismatch_size": factor * self.mismatch_size}
        return self.model_copy(update=changes)

    def widest(self, other: Self) -> Self:
        """What lets through whatever either of them does."""
        return type(self)(
            distance_mean=max(self.distance_mean, other.distance_mean),
            distance_shape=min(self.distance_shape, other.distance_shape),
            mismatch_rate=max(self.mismatch_rate, other.mismatch_rate),
            mismatch_size=max(self.mismatch_size, other.mismatch_size),
            groups=self.groups + other.groups,
            group_rows=max(self.group_rows, other.group_rows),
        )
