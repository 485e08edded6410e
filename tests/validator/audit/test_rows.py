"""Rows of another validator's audit file against one's own."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.wire.audits import MOST_FINDINGS, AuditRow, CheckState
from validator.audit.rows import compared, not_compared, row_differences, rows_differ

ROWS = 100


def rows(count: int = ROWS, **changed: Any) -> list[AuditRow]:
    """Rows of which the first is changed."""
    every = [
        AuditRow(
            row=row,
            group=row // 4,
            sample=row,
            prompt_index=row,
            tokens=5,
            task=float(row % 2),
            length_penalty=0.25,
            reward=row % 2 - 0.25,
            audited=True,
        )
        for row in range(count)
    ]
    return [every[0].model_copy(update=changed), *every[1:]]


def undecided(count: int) -> list[AuditRow]:
    return [each.model_copy(update={"task": None, "reward": None}) if each.row < count else each for each in rows()]


@pytest.mark.parametrize(
    ("theirs", "environment", "wrong"),
    [
        (rows(), "arithmetic", []),
        (rows(reward=0.75), "arithmetic", [0]),
        (rows(reward=-1e30), "code", [0]),  # a decided reward is the same everywhere
        (rows(group=7), "arithmetic", [0]),
        (rows(sample=7), "arithmetic", [0]),
        (rows()[1:], "arithmetic", [None, 0]),
        (rows(ROWS + 1), "arithmetic", [None]),
        (rows(row=1), "arithmetic", [None, 0]),
        (undecided(1), "arithmetic", [0]),  # nothing there may be undecided
        (undecided(5), "code", []),
        (undecided(6), "code", [0, 1, 2, 3, 4, 5]),
        (undecided(5), "math", []),
    ],
)
def test_what_a_judge_may_not_say_of_rows_is_named(
    theirs: list[AuditRow], environment: str, wrong: list[int | None]
) -> None:
    found = row_differences(theirs, rows(), environment=environment)
    assert [each.row for each in found] == wrong
    assert rows_differ([compared(found, note="")]) is bool(wrong)


def test_what_we_could_not_decide_ourselves_accuses_nobody() -> None:
    assert row_differences(rows(), undecided(50), environment="code") == ()


def test_one_row_of_a_short_file_may_be_undecided() -> None:
    theirs = [rows(3)[0].model_copy(update={"reward": None}), *rows(3)[1:]]
    assert row_differences(theirs, rows(3), environment="code") == ()
    assert len(row_differences(theirs, rows(3), environment="letters")) == 1


def test_the_evidence_lists_as_many_rows_as_it_may_and_counts_all() -> None:
    check = compared(row_differences(undecided(ROWS), rows(), environment="code"), note="compared")
    assert (check.state, len(check.findings), check.found) == (CheckState.FAILED, MOST_FINDINGS, ROWS)
    assert not rows_differ([not_compared("no audit file")])
