"""Compares another validator's audit file with one's own findings: the trainer learns the rewards that stand there.

Pure. The trainer drops a file whose audit file is of other work, lists rows elsewhere, or names other scores than the
file. So a judge could keep a run from learning work that it accepts, and everything that the trainer requires is
compared. A row's scores are the same everywhere, so two validators that both decided it must agree. Undecided rows are
not learned either; only environments whose checks have limits of time give a reason for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import MOST_FINDINGS, AuditCheck, AuditFile, AuditFinding, AuditRow, CheckState
from validator.domain.submissions import SubmittedWork

CHECK = "second-look"
"""Name of the check in the audit file."""

LIMITED = frozenset({"code", "math"})
"""Environments whose checks have limits: a slower machine may leave a row undecided that another one decides."""

FEW_UNDECIDED = 0.05
"""Share of a file's rows that a judge may leave undecided there although we decide them; at least one row."""

SHORT_SCORING = timedelta(seconds=30)
"""If all rows are scored here in less, a judge can't say that its time for scoring was over (by default 180 s)."""


def header_differences(theirs: AuditFile, work: SubmittedWork) -> tuple[AuditFinding, ...]:
    """Returns what an acceptance's audit file says otherwise of the work than the ledger.

    Args:
        theirs: The audit file that stands on the ledger.
        work: What was submitted.
    """
    pairs = {
        "key": (theirs.key, work.key),
        "sha256": (theirs.sha256, work.sha256),
        "outcome": (theirs.outcome, Outcome.ACCEPTED),
        "step": (theirs.step, work.step),
        "node": (theirs.node, work.node),
        "checkpoint": (theirs.checkpoint, work.checkpoint),
    }
    return tuple(
        AuditFinding(
            reason=int(ReasonCode.IDENTITY_OTHER_WORK), what=f"the audit file says {name} {said}; it is {wanted}"
        )
        for name, (said, wanted) in pairs.items()
        if said != wanted
    )


def unreadable(why: str) -> AuditFinding:
    """Returns the finding where an acceptance's audit file is missing or is none: its judge has to store it first."""
    return AuditFinding(reason=int(ReasonCode.FETCH_OTHER_BYTES), what=why[:2000])


def row_differences(
    theirs: Sequence[AuditRow], own: Sequence[AuditRow], *, environment: str, scoring: timedelta
) -> tuple[AuditFinding, ...]:
    """Returns what is wrong in the rows of another validator's audit file, by our own.

    Args:
        theirs: The rows of the audit file that stands on the ledger.
        own: What we found for the same file, every row of it.
        environment: The environment's name.
        scoring: How long all rows took to score here.
    """
    found: list[AuditFinding] = []
    undecided: list[AuditFinding] = []
    listed = {each.row: each for each in theirs}
    if len(theirs) != len(own) or len(listed) != len(theirs):
        found.append(_finding(f"the audit file lists {len(theirs)} rows, and the file has {len(own)}"))
    scored = _scored_before(theirs) if environment in LIMITED and scoring >= SHORT_SCORING else len(own)
    for mine in own:
        other = listed.get(mine.row)
        if other is None:
            found.append(_finding("the audit file leaves the row out", mine))
        elif wrong := _misplaced(other, mine) or _scored_otherwise(other, mine):
            found.append(_finding(f"the audit file says {wrong}", mine))
        elif mine.reward is not None and other.reward is None and mine.row < scored:
            undecided.append(_finding(f"the audit file leaves the row undecided; its reward is {mine.reward}", mine))
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


def audits_differ(checks: Sequence[AuditCheck]) -> bool:
    """Returns whether one of these checks found a difference."""
    return any(each.name == CHECK and each.state is CheckState.FAILED for each in checks)


def without_scores(rows: Sequence[AuditRow]) -> tuple[AuditRow, ...]:
    """Returns rows of which only the places are compared."""
    unknown = {"task": None, "length_penalty": None, "reward": None}
    return tuple(each.model_copy(update=unknown) for each in rows)


def _scored_before(rows: Sequence[AuditRow]) -> int:
    """The row from which on none was scored because the time for scoring was over; the number of rows if it was not.

    A row that was scored and left undecided has a length penalty; one that was not scored has none.
    """
    last = len(rows)
    for each in sorted(rows, key=lambda row: row.row, reverse=True):
        if each.row != last - 1 or (each.task, each.length_penalty, each.reward) != (None, None, None):
            break
        last = each.row
    return last


def _misplaced(other: AuditRow, mine: AuditRow) -> str:
    """Returns the differing fields of the row's position; empty if there are none."""
    said, wanted = ((row.group, row.sample, row.prompt_index) for row in (other, mine))
    if said == wanted:
        return ""
    return "group {}, sample {}, prompt {}; the file says {}, {}, {}".format(*said, *wanted)


def _scored_otherwise(other: AuditRow, mine: AuditRow) -> str:
    """Names the first score that differs, or returns "". Scores that this validator could not decide are skipped."""
    if (other.task is None) != (other.reward is None):
        return f"task {other.task} and reward {other.reward}; both are decided, or neither is"
    pairs = (
        ("reward", other.reward, mine.reward),
        ("task reward", other.task, mine.task),
        ("length penalty", other.length_penalty, mine.length_penalty),
    )
    for name, said, wanted in pairs:
        left_out = said is None and other.reward is None
        if wanted is not None and said != wanted and not left_out:
            return f"{name} {said}; it is {wanted}"
    return ""


def _finding(what: str, row: AuditRow | None = None) -> AuditFinding:
    if row is None:
        return AuditFinding(reason=int(ReasonCode.REWARD_DIFFERS), what=what)
    return AuditFinding(
        reason=int(ReasonCode.REWARD_DIFFERS), what=what, row=row.row, sample=row.sample, group=row.group
    )
