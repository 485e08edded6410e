"""Expected gain of forging some rows of each file, when a validator recomputes only a sample of rows. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from validator.audit.draw import rows_drawn
from validator.audit.rate import AuditRecord, RatePolicy, share_of

MOST_STAGES = 64
"""Maximum number of stages that `stages` computes, so that its loop always ends.

The loop never reaches this maximum: after 14 halvings the share is below one basis point, the smallest audit floor.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStage:
    """Share of rows that is recomputed once a node has a number of clean verdicts (acceptances) in a row."""

    clean: int
    """Number of consecutive clean verdicts from which the share applies."""
    share: float
    """Share of a file's rows, 0 < share <= 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForgery:
    """Consequences of forging some rows of each file.

    Args:
        forged: Number of forged rows.
        rows: Number of rows of a file.
        caught: Probability that at least one forged row is drawn.
        gain: Expected gain of the forger per file, in units of 10⁻¹⁸ MUST: the price of the forged rows if none of
            them is drawn (an upper bound of what forging saves), minus the penalty of the file if one is drawn. The
            gain is rounded up, in favour of the forger.
    """

    forged: int
    rows: int
    caught: float
    gain: int


def stages(policy: RatePolicy, *, floor: float) -> tuple[AuditStage, ...]:
    """Returns the audit stages of a node with only clean verdicts, from all rows down to the floor.

    Args:
        policy: Policy by which the share falls.
        floor: The pool's audit floor, 0 < floor <= 1.
    """
    found: list[AuditStage] = []
    clean = 0
    for _ in range(MOST_STAGES):
        share, _ = share_of(AuditRecord(clean=clean), floor=floor, policy=policy)
        found.append(AuditStage(clean=clean, share=share))
        if share <= floor:
            break
        clean = policy.trial if clean == 0 else clean + policy.halved_after
    return tuple(found)


def row_forgery(*, rows: int, forged: int, share: float, pays: int, costs: int) -> RowForgery:
    """Computes the consequences of forging `forged` rows of a file.

    Args:
        rows: Rows of a file, at least 1.
        forged: Number of forged rows, 1 to `rows`.
        share: Share of the rows that is recomputed, 0 < share <= 1.
        pays: Price of the file, in units of 10⁻¹⁸ MUST.
        costs: Penalty of a forged file, in the same unit.
    """
    drawn = rows_drawn(share, rows)
    ways, missed = comb(rows, drawn), comb(rows - forged, drawn)  # integers, so that the gain is exact
    numerator = missed * pays * forged - (ways - missed) * costs * rows
    return RowForgery(forged=forged, rows=rows, caught=1 - missed / ways, gain=-(-numerator // (ways * rows)))
