"""Check 7 as a service makes it: within a time for all rows, and a difference is scored again before it counts."""

from __future__ import annotations

import time
from datetime import timedelta

from rollouts.checks import SCORE_CHECK, CheckInput, CheckResult
from rollouts.checks.result import unknown
from rollouts.checks.reward import UNSCORED, RowScore, RowScorer, compared, differs, other_build, undecided
from rollouts.sandbox.deadline import jobs_end_by

SCORED_AGAIN = 2
"""Times. A program that is scored by chance comes out differently in one of them, and is excused."""


def scored(case: CheckInput, *, budget: timedelta) -> CheckResult:
    """Scores every row; one that differs from the file is scored again at once, and has no score if it then has two.

    When the time is over, the job under way is ended, and its row and the remaining ones are `UNSCORED`. So the node's
    own programs decide how many of its rows are learned from, and never how long a validator is busy with them.

    Args:
        case: A file whose rows fit the model.
        budget: Wall time for all rows together.

    Raises:
        SandboxUnavailable: Answers can't be checked on this machine.
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
                score = UNSCORED  # the time for all rows ended its job, not a limit of its own
            if score is not None:
                scores[row] = score
    return compared(case, scores)


def _row(case: CheckInput, scorer: RowScorer, row: int) -> RowScore | None:
    score = scorer.score(row)
    if score is None or not differs(case, row, score):
        return score
    same = all(scorer.score(row) == score for _ in range(SCORED_AGAIN))
    return score if same else undecided(score)
