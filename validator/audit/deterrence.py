"""Expected gain and cost of forging some rows of a file, when rows are sampled. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from validator.audit.draw import rows_drawn
from validator.audit.rate import AuditRecord, RatePolicy, share_of

MOST_STAGES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStage:
    """Share of rows that is recomputed from a number of consecutive clean verdicts on."""

    clean: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForgery:
    """Consequences of forging some rows of each file.

    Args:
        forged: Number of forged rows.
        rows: Rows of a file.
        caught: Probability that at least one of them is drawn.
        gain: Expected gain per file in the token's smallest unit: the price of the forged rows if none is drawn (more
            can't be saved), less the file's penalty if one is drawn. Rounded up, in favour of the forger.
    """

    forged: int
    rows: int
    caught: float
    gain: int


def stages(policy: RatePolicy, *, floor: float) -> tuple[AuditStage, ...]:
    """Returns the shares of a node that never fails, from all rows down to the floor."""
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
        share: Share of the rows that is recomputed.
        pays: Price of the file, in the token's smallest unit.
        costs: Penalty of a forged file, in the same unit.
    """
    drawn = rows_drawn(share, rows)
    ways, missed = comb(rows, drawn), comb(rows - forged, drawn)  # whole numbers: the least gain is exact
    numerator = missed * pays * forged - (ways - missed) * costs * rows
    return RowForgery(forged=forged, rows=rows, caught=1 - missed / ways, gain=-(-numerator // (ways * rows)))
