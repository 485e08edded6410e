"""Check 7 as a service makes it: a difference is scored again before anybody is accused of it."""

from __future__ import annotations

from rollouts.checks import Case, CheckResult, State
from rollouts.checks.result import Figure
from rollouts.checks.reward import compared, judge, score

SCORED_AGAIN = 2
"""Times. A program that is scored by chance comes out differently in one of them, and is excused."""


def scored(case: Case) -> CheckResult:
    """Scores every row, and all of them again if any differs; a row that has two scores has none.

    Raises:
        SandboxUnavailable: Answers can't be checked on this machine.
    """
    result = judge(case)
    if result.state is not State.FAILED:
        return result
    attempts = [result.rows, *(score(case) for _ in range(SCORED_AGAIN))]
    rows: dict[int, dict[str, Figure]] = {}
    for row, one in attempts[0].items():
        same = all(attempt.get(row) == one for attempt in attempts)
        rows[row] = {**one} if same else {**one, "task": None, "reward": None}
    return compared(case, rows)
