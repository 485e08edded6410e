"""What forging some rows of a file gains and costs on average, when rows are drawn and not files. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from validator.audit.draw import rows_drawn
from validator.audit.rate import AuditRecord, RatePolicy, share_of

MOST_STAGES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStage:
    """How much of a node's files is computed again, from so many clean verdicts in a row on."""

    clean: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForgery:
    """What it means to forge some rows of each file.

    Args:
        forged: Rows that are forged.
        rows: Rows of a file.
        caught: The probability that at least one of them is drawn.
        gain: What it gains per file on average, in the token's smallest unit: the price of the forged rows if none is
            drawn (more can't be saved), less the file's penalty if one is. Rounded up, in favour of the forger.
    """

    forged: int
    rows: int
    caught: float
    gain: int


def stages(policy: RatePolicy, *, floor: float) -> tuple[AuditStage, ...]:
    """The way of a node that never fails, from all rows down to the floor."""
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
    """What forging `forged` of a file's rows comes to.

    Args:
        rows: Rows of a file, at least 1.
        forged: How many are forged, 1 to `rows`.
        share: Of the rows that are computed again.
        pays: What the file pays, in the token's smallest unit.
        costs: What it costs if it is found forged.
    """
    drawn = rows_drawn(share, rows)
    ways, missed = comb(rows, drawn), comb(rows - forged, drawn)  # whole numbers: the least gain is exact
    numerator = missed * pays * forged - (ways - missed) * costs * rows
    return RowForgery(forged=forged, rows=rows, caught=1 - missed / ways, gain=-(-numerator // (ways * rows)))
