"""Check 11: every dialogue is replayed in the environment, and has exactly the replies and the end that it gives.

A reply that was forged before the next turn was drawn passes the checks of the prefill, because tokens, proofs and
log-probabilities are those of the forged context. So every row is replayed, not only the drawn ones. Check 7 takes the
score from the same replay.
"""

from __future__ import annotations

from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckResult, Cost, Fails, Figure, concluded, unknown
from rollouts.checks.scoring import Scores, excused_rows, other_build, score_rows
from rollouts.turns import given_tokens

RATIONALE = (
    "An episode is a pure function of its prompt and the model's messages, and its limits are counted, not timed. So "
    "every machine gives the same replies and ends a dialogue at the same turn. A row is excused if a call reaches a "
    "limit of time or memory here. A few rows are also excused that end without reward where a call may have reached "
    "such a limit on the node. Any other difference means that the node invented a reply or an end."
)


def judge(case: CheckInput) -> CheckResult:
    """Replays every row and compares it with the file.

    Raises:
        SandboxUnavailable: This machine has no sandbox for the environment's code.
    """
    note = other_build(case)
    return unknown(CHECK.name, note) if note else compared(case, score_rows(case))


def compared(case: CheckInput, scores: Scores) -> CheckResult:
    """Returns the result of this check from the replays of the rows.

    Rows that end without reward at a possible limit of the node are excused if they are few: see `excused_rows`. If
    there are more, the figure `ends_at_limit` counts them.
    """
    samples, excused = case.file.samples, excused_rows(case, scores)
    faults = {row: one.fault for row, one in scores.items() if one.fault is not None and row not in excused}
    findings = [case.finding(one.reason, one.what, row=row, position=one.position) for row, one in faults.items()]
    figures: dict[str, Figure] = {
        "turns": sum(len(sample.turns) for sample in samples),
        "given_tokens": sum(given_tokens(sample.turns) for sample in samples),
        "excused": sum(row in excused or (one.task is None and one.fault is None) for row, one in scores.items()),
        "ends_at_limit": sum(one.ends_at_limit for one in faults.values()),
    }
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures)


CHECK = Check(number=11, name="dialogue", cost=Cost.SCORE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
