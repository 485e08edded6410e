"""Compares the rows of another validator's audit file with one's own: the trainer learns the rewards that stand there.

Pure. A row's reward is the same everywhere, so two validators that both decided it must agree. Undecided rows have no
reward and are not learned, so a judge could hide rows by declaring them undecided; only environments whose checks have
limits of time give a reason for it, and only for few rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.verdicts import ReasonCode
from protocol.wire.audits import MOST_FINDINGS, AuditCheck, AuditFinding, AuditRow, CheckState

CHECK = "second-look"
"""Name of the check in the audit file."""

LIMITED = frozenset({"code", "math"})
"""Environments whose checks have limits: a slower machine may leave a row undecided that another one decides."""

FEW_UNDECIDED = 0.05
"""Share of a file's rows that a judge may leave undecided there although we decide them; at least one row."""


def row_differences(
    theirs: Sequence[AuditRow], own: Sequence[AuditRow], *, environment: str
) -> tuple[AuditFinding, ...]:
    """Returns what is wrong in the rows of another validator's audit file, by our own.

    Args:
        theirs: The rows of the audit file that stands on the ledger.
        own: What we found for the same file, every row of it.
        environment: The environment's name.
    """
    found: list[AuditFinding] = []
    undecided: list[AuditFinding] = []
    listed = {each.row: each for each in theirs}
    if len(theirs) != len(own) or len(listed) != len(theirs):
        found.append(_finding(f"the audit file lists {len(theirs)} rows, and the file has {len(own)}"))
    for mine in own:
        other = listed.get(mine.row)
        if other is None:
            found.append(_finding("the audit file leaves the row out", mine))
        elif (other.group, other.sample) != (mine.group, mine.sample):
            what = f"the audit file says group {other.group}, sample {other.sample}"
            found.append(_finding(f"{what}; the file says {mine.group}, {mine.sample}", mine))
        elif mine.reward is None or other.reward == mine.reward:
            continue
        elif other.reward is None:
            undecided.append(_finding(f"the audit file leaves the row undecided; its reward is {mine.reward}", mine))
        else:
            found.append(_finding(f"the audit file says reward {other.reward}; it is {mine.reward}", mine))
    excused = max(1, int(FEW_UNDECIDED * len(own))) if environment in LIMITED else 0
    return (*found, *(undecided if len(undecided) > excused else ()))


def compared(differences: Sequence[AuditFinding], *, note: str) -> AuditCheck:
    """Returns the comparison as a check of our own audit file, which is the evidence of a dispute."""
    return AuditCheck(
        name=CHECK,
        state=CheckState.FAILED if differences else CheckState.PASSED,
        fails="exact",
        findings=tuple(differences[:MOST_FINDINGS]),
        found=len(differences),
        note=note,
    )


def not_compared(why: str) -> AuditCheck:
    """Returns the check where the other audit file can't be read."""
    return AuditCheck(name=CHECK, state=CheckState.UNKNOWN, note=why)


def rows_differ(checks: Sequence[AuditCheck]) -> bool:
    """Whether a comparison among these checks found a difference."""
    return any(each.name == CHECK and each.state is CheckState.FAILED for each in checks)


def _finding(what: str, row: AuditRow | None = None) -> AuditFinding:
    if row is None:
        return AuditFinding(reason=int(ReasonCode.REWARD_DIFFERS), what=what)
    return AuditFinding(
        reason=int(ReasonCode.REWARD_DIFFERS), what=what, row=row.row, sample=row.sample, group=row.group
    )
