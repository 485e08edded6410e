"""Compares another validator's audit file with this validator's findings. No I/O.

The trainer learns from the rewards in the audit file. It drops a file whose audit file belongs to other work, lists
other rows, or has other scores than the file. A corrupt judge could so prevent the run from learning work that it
accepts; therefore all fields that the trainer requires are compared. A row's score is deterministic, so two validators
that decided a row must agree. Undecided rows are not learned; only environments with time limits justify them.
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
"""Environments with time limits: a slow machine may leave rows undecided that another one decides."""

FEW_UNDECIDED = 0.05
"""Share of a file's rows that a judge may leave undecided although this validator decides them; at least one row."""

SHORT_SCORING = timedelta(seconds=30)
"""If this validator scores all rows in less, a judge can't claim that its scoring time (180 s by default) ran out."""


def header_differences(theirs: AuditFile, work: SubmittedWork) -> tuple[AuditFinding, ...]:
    """Returns the contradictions between an acceptance's audit file and the ledger.

    Args:
        theirs: The audit file of the verdict on the ledger.
        work: The submission.
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
    """Returns the finding for an acceptance with a missing or unreadable audit file."""
    return AuditFinding(reason=int(ReasonCode.FETCH_OTHER_BYTES), what=why[:2000])


def row_differences(
    theirs: Sequence[AuditRow], own: Sequence[AuditRow], *, environment: str, scoring: timedelta
) -> tuple[AuditFinding, ...]:
    """Returns the differences between the rows of another validator's audit file and this validator's.

    Args:
        theirs: Rows of the audit file of the verdict on the ledger.
        own: This validator's findings for all rows of the same file.
        environment: Name of the environment.
        scoring: Time that scoring all rows took here.
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
    """Returns the first row that was not scored because the time ran out; the number of rows if it did not.

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
