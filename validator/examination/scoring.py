"""Check 7 of an examination: a time limit for all rows; differing rows are scored again before they count."""

from __future__ import annotations

import time
from datetime import timedelta

from rollouts.checks import SCORE_CHECK, CheckInput, CheckResult
from rollouts.checks.result import unknown
from rollouts.checks.reward import UNSCORED, RowScore, RowScorer, compared, differs, other_build, undecided
from rollouts.sandbox.deadline import jobs_end_by

SCORED_AGAIN = 2
"""Repetitions for a differing row. A program with random results differs in one of them, and is excused."""


def scored(case: CheckInput, *, budget: timedelta) -> CheckResult:
    """Scores all rows. A row that differs from the file is scored again, and gets no score if the results differ.

    When the time is over, the running job is ended, and its row and the remaining ones are `UNSCORED`. So slow programs
    of a node reduce the number of its rows that are learned, but can't occupy a validator for longer.

    Args:
        case: A file with rows that fit the model.
        budget: Wall time for all rows.

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
                score = UNSCORED  # ended by the time limit for all rows, not by its own
            if score is not None:
                scores[row] = score
    return compared(case, scores)


def _row(case: CheckInput, scorer: RowScorer, row: int) -> RowScore | None:
    score = scorer.score(row)
    if score is None or not differs(case, row, score):
        return score
    same = all(scorer.score(row) == score for _ in range(SCORED_AGAIN))
    return score if same else undecided(score)
