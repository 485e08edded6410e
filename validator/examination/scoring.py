"""Checks 7 and 11 of an examination: scores all rows within a time limit, and repeats the scoring of differing rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from rollouts.checks import CheckInput, CheckResult, score_checks
from rollouts.checks.result import unknown
from rollouts.checks.reward import compared_rows, differing_environments
from rollouts.checks.scoring import UNSCORED, RowScore, RowScorer, differs, other_build
from rollouts.sandbox.deadline import jobs_end_by

SCORED_AGAIN = 2
"""Number of times that a row is scored again if its score or its dialogue differs from the file.

If a repeated score or replay differs from the first one, the row stays undecided: the environment or this machine is at
fault.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredFile:
    """Results of scoring a file.

    Args:
        results: Result of check 7, and of check 11 if the recipe has dialogues.
        environments: Environments of the rows that differ for another reason than a limit of the node's machine.
    """

    results: tuple[CheckResult, ...]
    environments: frozenset[str] = frozenset()


def scored(case: CheckInput, *, budget: timedelta) -> ScoredFile:
    """Scores all rows, replays their dialogues, and compares both with the file.

    A row that differs from the file is scored again, and stays undecided if a repeated score differs from the first
    one. When the time limit for all rows is reached, the running job is ended, and its row and the remaining rows are
    `UNSCORED`. So slow programs reduce the number of rows from which the trainer learns, but can't occupy a validator
    beyond the time limit.

    Args:
        case: The file, which has passed all earlier checks.
        budget: Time limit for all rows, in wall time.

    Raises:
        SandboxUnavailable: This machine can't run the sandbox that scores answers.
    """
    note = other_build(case)
    if note:
        return ScoredFile(results=tuple(unknown(check.name, note) for check in score_checks(case.version)))
    scorer = RowScorer(case)
    scores: dict[int, RowScore] = {}
    end = time.monotonic() + budget.total_seconds()
    with jobs_end_by(end):
        for row in range(len(case.file.samples)):
            score = UNSCORED if time.monotonic() >= end else _row(case, scorer, row)
            if score is not None and score.task is None and score.fault is None and time.monotonic() >= end:
                score = UNSCORED  # the time limit for all rows ended the job, not the row's own time limit
            if score is not None:
                scores[row] = score
    served = case.version.recipe.gateway is not None  # its prompts come from clients, and its rows have no reward
    if len(scores) < len(case.file.samples) and not served:  # check 4 has found all prompts: this machine has changed
        note = f"{len(case.file.samples) - len(scores)} rows have no score, because their prompts do not exist here"
        return ScoredFile(results=tuple(unknown(check.name, note) for check in score_checks(case.version)))
    return ScoredFile(results=compared_rows(case, scores), environments=differing_environments(case, scores))


def _row(case: CheckInput, scorer: RowScorer, row: int) -> RowScore | None:
    score = scorer.score(row)
    if score is None or not differs(case, row, score):
        return score
    same = all(scorer.score(row) == score for _ in range(SCORED_AGAIN))
    return score if same else score.undecided
