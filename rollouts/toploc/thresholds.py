"""Judges the proofs of a sample or a file by thresholds for honest work.

The module has pure functions from results to a judgement. A malformed proof is a forgery, regardless of the thresholds.
A figure above its threshold is a statistical failure; the validator decides about it by wider limits and a second
prefill.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import InvalidInput
from rollouts.toploc.results import WORST, Malformed, ProofResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofErrors:
    """Errors of proofs relative to the verifier's states; 0 if the prover's states are equal.

    Args:
        exponent_mismatches: Share of points at which exponents differ, 0 to 1.
        sign_mismatches: Share of points at which signs differ, 0 to 1.
        mantissa_mean: Mean difference of mantissas over all points of equal exponent, 0 to 127; 128 without such
            points.
        mantissa_median: Median of the proofs' median mantissa differences.
        distance_mean: Mean distance in units of bfloat16's last place over all points, each at most 128.
        distance_worst: The largest `distance_mean` of one proof; it exposes a single forged interval among many honest
            intervals.
    """

    exponent_mismatches: float
    sign_mismatches: float
    mantissa_mean: float
    mantissa_median: float
    distance_mean: float
    distance_worst: float


_LEAST = {"mantissa_median": 1.0, "sign_mismatches": 1 / 128}
"""Smallest possible increase of these figures: one unit, and one of the 128 points of an interval."""

NAMES = tuple(field.name for field in fields(ProofErrors))


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Combined figures of the proofs of one sample or one file.

    Args:
        proofs: Number of results.
        points: Number of compared values.
        malformed: The distinct reasons of malformed proofs, sorted by name.
        figures: Errors of the proofs that are not malformed.
    """

    proofs: int
    points: int
    malformed: tuple[Malformed, ...]
    figures: ProofErrors


class ProofOutcome(StrEnum):
    """Outcome for the proofs of one sample or file."""

    PASSED = "passed"
    STATISTICAL = "statistical"
    """A figure exceeds its threshold for honest work."""
    EXACT = "exact"
    """A proof is malformed, so no honest prover made it."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A figure above its threshold."""

    figure: str
    value: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome and its reasons."""

    outcome: ProofOutcome
    malformed: tuple[Malformed, ...] = ()
    excesses: tuple[Excess, ...] = ()


_Share = Annotated[float, Field(ge=0, le=1)]
_Units = Annotated[float, Field(ge=0, le=WORST)]


class Thresholds(BaseModel):
    """Upper limits for each field of `ProofErrors`; the limits of a sample are wider than the limits of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    exponent_mismatches: _Share
    sign_mismatches: _Share
    mantissa_mean: _Units
    mantissa_median: _Units
    distance_mean: _Units
    distance_worst: _Units

    @classmethod
    def around(cls, honest: Sequence[Aggregate], *, headroom: float) -> Self:
        """Returns the largest figures of honest aggregates, each times `headroom`, such as 1.5.

        Raises:
            InvalidInput: There are no aggregates, an aggregate has a malformed proof, or the headroom is below 1.
        """
        if not honest or any(aggregate.malformed for aggregate in honest) or not headroom >= 1:
            raise InvalidInput(
                f"thresholds can't be derived from {len(honest)} aggregates with a headroom of {headroom}",
                hint="measure at least one honest sample or file, none malformed, and leave a headroom of 1 or more",
            )
        largest = {name: max(getattr(aggregate.figures, name) for aggregate in honest) for name in NAMES}
        return cls(**{name: min(_bound(name), largest[name] * headroom) for name in NAMES})

    def widened(self, factor: float) -> Self:
        """Returns the thresholds times `factor`, capped at each figure's maximum.

        `mantissa_median` and `sign_mismatches` may be 0, so they are raised by at least their smallest step.
        """
        return type(self)(
            **{name: min(_bound(name), max(factor * value, value + _LEAST.get(name, 0.0))) for name, value in self}
        )


def aggregate(results: Iterable[ProofResult]) -> Aggregate:
    """Combines the results of one sample or of all samples of a file.

    Raises:
        InvalidInput: `results` is empty, so nothing was verified: every sample has at least one token and one proof.
    """
    every = list(results)
    if not every:
        raise InvalidInput("there are no proof results to combine", hint="verify at least one row first")
    sound = [result for result in every if result.malformed is None]
    points = sum(result.points for result in sound)
    matching = points - sum(result.exponent_mismatches for result in sound)
    figures = ProofErrors(
        exponent_mismatches=_ratio(sum(result.exponent_mismatches for result in sound), points, 1.0),
        sign_mismatches=_ratio(sum(result.sign_mismatches for result in sound), points, 1.0),
        mantissa_mean=_ratio(sum(result.mantissa_total for result in sound), matching, WORST),
        mantissa_median=statistics.median(result.mantissa_median for result in sound) if sound else WORST,
        distance_mean=_ratio(sum(result.distance_total for result in sound), points, WORST),
        distance_worst=max((result.distance_mean for result in sound), default=WORST),
    )
    return Aggregate(len(every), points, tuple(sorted({one.malformed for one in every if one.malformed})), figures)


def judge(aggregate: Aggregate, thresholds: Thresholds) -> Judgement:
    """Compares an aggregate with the thresholds for samples or files. A figure equal to its threshold passes."""
    excesses = tuple(
        Excess(name, value, limit)
        for name in NAMES
        if not (value := getattr(aggregate.figures, name)) <= (limit := getattr(thresholds, name))
    )
    if aggregate.malformed:
        return Judgement(ProofOutcome.EXACT, aggregate.malformed, excesses)
    return Judgement(ProofOutcome.STATISTICAL if excesses else ProofOutcome.PASSED, (), excesses)


def _bound(name: str) -> float:
    return 1.0 if name.endswith("mismatches") else WORST


def _ratio(total: int, count: int, of_none: float) -> float:
    return total / count if count else of_none
