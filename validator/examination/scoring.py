"""Check 7 of an examination: scores all rows within a time limit, and repeats the scoring of differing rows."""

from __future__ import annotations

import time
from datetime import timedelta

from rollouts.checks import SCORE_CHECK, CheckInput, CheckResult
from rollouts.checks.result import unknown
from rollouts.checks.reward import UNSCORED, RowScore, RowScorer, compared, differs, other_build, undecided
from rollouts.sandbox.deadline import jobs_end_by

SCORED_AGAIN = 2
"""Number of times that a row is scored again if its score differs from the reward in the file.

If a repeated score differs from the first one, the row stays undecided.
"""


def scored(case: CheckInput, *, budget: timedelta) -> CheckResult:
    """Scores all rows and compares the scores with the file's rewards; returns the result of the check.

    A row whose score differs from the reward in the file is scored again, and stays undecided if a repeated score
    differs from the first one. When the time limit for all rows is reached, the running job is ended, and its row and
    the remaining rows are `UNSCORED`. So slow programs reduce the number of rows from which the trainer learns, but
    can't occupy a validator beyond the time limit.

    Args:
        case: The file, which has passed all earlier checks.
        budget: Time limit for all rows, in wall time.

    Raises:
        SandboxUnavailable: This machine can't run the sandbox that scores answers.
    """
    note = other_build(case)
    if note:
        return unknown(SCORE_CHECK.name, note)
    scorer = RowScorer(case)
    scores: dict[int, RowScore] = {}
    end = time.monotonic() + budget.total_seconds()
    with jobs_end_by(end):
        for row in range(len(case.file.samples)):
            score = UNSCORED if time.monotonic() >= end else _row(case, scorer, row)
            if score is not None and score["task"] is None and time.monotonic() >= end:
                score = UNSCORED  # the time limit for all rows ended the job, not the row's own time limit
            if score is not None:
                scores[row] = score
    return compared(case, scores)


def _row(case: CheckInput, scorer: RowScorer, row: int) -> RowScore | None:
    score = scorer.score(row)
    if score is None or not differs(case, row, score):
        return score
    same = all(scorer.score(row) == score for _ in range(SCORED_AGAIN))
    return score if same else undecided(score)
