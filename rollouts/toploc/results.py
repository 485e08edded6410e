"""Results of comparing a proof with the verifier's own states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WORST = 128.0
"""Largest distance, and value of a mantissa figure if no mantissas could be compared: one more than the largest
possible difference of two mantissas."""


class Malformed(StrEnum):
    """Reason why bytes can't be a proof of any states. An honest prover never produces one."""

    MISSING = "missing"
    """There are fewer proofs than intervals."""
    SURPLUS = "surplus"
    """There are more proofs than intervals; one such result represents all surplus proofs."""
    LENGTH = "length"
    """The proof has the wrong length."""
    MODULUS = "modulus"
    """The modulus is outside the range of honest provers."""
    COEFFICIENT = "coefficient"
    """A coefficient is not an element of the field."""
    PADDING = "padding"
    """The interval has fewer values than the proof has coefficients, and a surplus coefficient is not zero."""


@dataclass(frozen=True, slots=True)
class ProofResult:
    """Comparison of one interval: the verifier's largest values against the proof's values at the same indices.

    Args:
        malformed: Reason why the proof is invalid; then `points` is 0, and the median and the means are `WORST`.
        points: Number of compared values.
        exponent_mismatches: Points at which the exponents differ.
        sign_mismatches: Points at which the signs differ, except where both values are zero.
        mantissa_total: Sum of the mantissas' absolute differences (0 to 127 each) over points of equal exponent.
        mantissa_median: Median of these differences; `WORST` if no point has equal exponents.
        distance_total: Sum over all points of the distance in units of the last place of bfloat16, at most 128 each.
            Unlike mantissa differences, the distance is continuous: two neighbouring values on both sides of a power of
            two differ by one unit.
    """

    malformed: Malformed | None
    points: int
    exponent_mismatches: int
    sign_mismatches: int
    mantissa_total: int
    mantissa_median: float
    distance_total: int

    @classmethod
    def refused(cls, reason: Malformed) -> ProofResult:
        """Returns the result of a malformed proof."""
        return cls(reason, 0, 0, 0, 0, WORST, 0)

    @property
    def mantissa_mean(self) -> float:
        """Mean absolute difference of mantissas over points of equal exponent; `WORST` if there is no such point."""
        matching = self.points - self.exponent_mismatches
        return self.mantissa_total / matching if matching else WORST

    @property
    def distance_mean(self) -> float:
        """Mean distance over all points, 0 to 128."""
        return self.distance_total / self.points if self.points else WORST
