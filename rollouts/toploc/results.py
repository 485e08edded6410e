"""What comparing a proof with the verifier's own states gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WORST = 128.0
"""Stands for an error that can't be measured in mantissas: one more than the largest that can."""


class Malformed(StrEnum):
    """Why bytes can't be a proof, whatever the states. An honest prover never makes any of these."""

    MISSING = "missing"
    """There are fewer proofs than intervals."""
    SURPLUS = "surplus"
    """There are more proofs than intervals; one such result stands for all of the surplus."""
    LENGTH = "length"
    """It is not as long as the format says, to the byte."""
    MODULUS = "modulus"
    """Its modulus is outside the range in which honest provers find theirs."""
    COEFFICIENT = "coefficient"
    """A coefficient is no element of the field."""
    PADDING = "padding"
    """The interval has fewer values than the proof has coefficients, and the rest of these are not zero."""


@dataclass(frozen=True, slots=True)
class ProofResult:
    """One interval's comparison: at each of the verifier's own largest values, that value against the proof's.

    Args:
        malformed: Why it can't be a proof; then every figure is at its worst and `points` is 0.
        points: Values compared.
        exponent_mismatches: Points at which the exponents differ.
        sign_mismatches: Points at which the signs differ, but for two zeros.
        mantissa_total: Sum of the mantissas' absolute differences (0 to 127 each) over points of equal exponent.
        mantissa_median: Median of the same; `WORST` if there is no such point.
        distance_total: Sum over all points of the distance in units of the last place of bfloat16, at most 128 each.
            Unlike the mantissas it has no holes: a value just across a power of two is one unit off, not a mismatch.
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
        """The result of what can't be a proof."""
        return cls(reason, 0, 0, 0, 0, WORST, 0)

    @property
    def mantissa_mean(self) -> float:
        """Mean absolute difference of mantissas over points of equal exponent; `WORST` if there is none."""
        matching = self.points - self.exponent_mismatches
        return self.mantissa_total / matching if matching else WORST

    @property
    def distance_mean(self) -> float:
        """Mean distance over all points, 0 to 128."""
        return self.distance_total / self.points if self.points else WORST
