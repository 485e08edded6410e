"""Compares another validator's audit file with this validator's findings, row by row. No I/O.

The trainer learns from the rewards in the audit file of an accepted submission. The trainer drops a rollout file whose
audit file belongs to other work, lists other rows, or has other scores than the rollout file. With a wrong audit file,
a corrupt validator could accept work and still prevent the run from learning from it. So a second look compares all
fields that the trainer requires. A row's score is deterministic: two validators that both decided a row must agree. A
validator may leave a row undecided only if the check of its answer has a limit of time or memory. The trainer skips
undecided rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import MOST_FINDINGS, AuditCheck, AuditFile, AuditFinding, AuditRow, CheckState
from validator.domain.submissions import SubmittedWork

CHECK = "second-look"
"""Name of the comparison of audit files in the list of checks of this validator's own audit file."""

LIMITED = "reward.limited"
"""Name of a row's measurement that is true if scoring the row has a limit of time or memory.

A slow machine may leave such a row undecided.
"""

FEW_UNDECIDED = 0.05
"""Share of rows that another validator may leave undecided although this validator decides them.

One row is always allowed.
"""

SHORT_SCORING = timedelta(seconds=30)
"""Scoring time of this validator from which it excuses rows that another validator left unscored for lack of time.

Each validator may stop scoring a file at its own time limit, 180 s by default. If this validator needs less than 30 s
for all rows, a usual machine does not reach that limit, so rows that the other validator left unscored are a
difference.
"""


def header_differences(theirs: AuditFile, work: SubmittedWork) -> tuple[AuditFinding, ...]:
    """Returns the contradictions between the audit file of an accepted submission and the ledger.

    Args:
        theirs: The other validator's audit file, which the verdict on the ledger names.
        work: The submission on the ledger.
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
            reason=int(ReasonCode.IDENTITY_OTHER_WORK),
            what=f"the audit file has {name} {said}, but the work has {wanted}",
        )
        for name, (said, wanted) in pairs.items()
        if said != wanted
    )


def unreadable(why: str) -> AuditFinding:
    """Returns the finding for an accepted submission whose audit file is missing or unreadable."""
    return AuditFinding(reason=int(ReasonCode.FETCH_OTHER_BYTES), what=why[:2000])


def row_differences(
    theirs: Sequence[AuditRow], own: Sequence[AuditRow], *, scoring: timedelta
) -> tuple[AuditFinding, ...]:
    """Returns the differences between another validator's rows and this validator's rows of the same file.

    Args:
        theirs: Rows of the audit file that the verdict on the ledger names.
        own: This validator's findings for all rows of the rollout file.
        scoring: Time that this validator took to score all rows.
    """
    found: list[AuditFinding] = []
    undecided: list[AuditFinding] = []
    listed = {each.row: each for each in theirs}
    if len(theirs) != len(own) or len(listed) != len(theirs):
        found.append(_finding(f"the audit file lists {len(theirs)} rows, but the rollout file has {len(own)}"))
    limited = {each.row for each in own if each.figures.get(LIMITED)}
    scored = _scored_before(theirs) if limited and scoring >= SHORT_SCORING else len(own)
    for mine in own:
        other = listed.get(mine.row)
        if other is None:
            found.append(_finding("the audit file does not list the row", mine))
        elif wrong := _misplaced(other, mine) or _scored_otherwise(other, mine):
            found.append(_finding(f"the audit file has {wrong}", mine))
        elif mine.reward is not None and other.reward is None and mine.row < scored:
            missing = _finding(f"the audit file has no reward for the row, but it is {mine.reward}", mine)
            (undecided if mine.row in limited else found).append(missing)
    excused = max(1, int(FEW_UNDECIDED * len(own)))
    return (*found, *(undecided if len(undecided) > excused else ()))


def compared(differences: Sequence[AuditFinding], *, note: str) -> AuditCheck:
    """Returns the comparison as a check for this validator's own audit file, which may become evidence of a dispute.

    Args:
        differences: Differences that were found; the check passed if there are none.
        note: Note of the check, which names the compared audit file.
    """
    return AuditCheck(
        name=CHECK,
        state=CheckState.FAILED if differences else CheckState.PASSED,
        fails="exact",
        findings=tuple(differences[:MOST_FINDINGS]),
        found=len(differences),
        note=note,
    )


def audits_differ(checks: Sequence[AuditCheck]) -> bool:
    """Returns True if these checks include the comparison with another audit file, and it found a difference."""
    return any(each.name == CHECK and each.state is CheckState.FAILED for each in checks)


def without_scores(rows: Sequence[AuditRow]) -> tuple[AuditRow, ...]:
    """Returns the rows without their scores, so that a comparison covers only their positions."""
    unknown = {"task": None, "length_penalty": None, "reward": None}
    return tuple(each.model_copy(update=unknown) for each in rows)


def _scored_before(rows: Sequence[AuditRow]) -> int:
    """Returns the number of rows that were scored before the time for scoring ran out; all rows if it sufficed.

    A row that was scored and stayed undecided has a length penalty; a row that was not scored has none.
    """
    last = len(rows)
    for each in sorted(rows, key=lambda row: row.row, reverse=True):
        if each.row != last - 1 or (each.task, each.length_penalty, each.reward) != (None, None, None):
            break
        last = each.row
    return last


def _misplaced(other: AuditRow, mine: AuditRow) -> str:
    """Describes how a row's position in the audit file differs from the rollout file; returns "" if they are equal."""
    said, wanted = ((row.group, row.sample, row.prompt_index) for row in (other, mine))
    if said == wanted:
        return ""
    return "group {}, sample {}, prompt {}, but the rollout file has {}, {}, {}".format(*said, *wanted)


def _scored_otherwise(other: AuditRow, mine: AuditRow) -> str:
    """Describes the first score that differs between two validators' rows; returns "" if there is none.

    Scores that this validator lacks are not compared. The caller handles rows that the other validator left undecided.
    """
    if (other.task is None) != (other.reward is None):
        return f"task reward {other.task} and reward {other.reward}, but either both or none must be decided"
    pairs = (
        ("reward", other.reward, mine.reward),
        ("task reward", other.task, mine.task),
        ("length penalty", other.length_penalty, mine.length_penalty),
    )
    for name, said, wanted in pairs:
        left_out = said is None and other.reward is None
        if wanted is not None and said != wanted and not left_out:
            return f"{name} {said}, but it is {wanted}"
    return ""


def _finding(what: str, row: AuditRow | None = None) -> AuditFinding:
    if row is None:
        return AuditFinding(reason=int(ReasonCode.REWARD_DIFFERS), what=what)
    return AuditFinding(
        reason=int(ReasonCode.REWARD_DIFFERS), what=what, row=row.row, sample=row.sample, group=row.group
    )
