"""Comparison of another validator's audit file with this validator's findings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from protocol.identifiers import Digest, address
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from protocol.wire.audits import MOST_FINDINGS, AuditFinding, AuditRow, CheckState
from tests.kit.submissions import work
from tests.validator.audit.evidence import audit_of
from validator.audit.rows import (
    SHORT_SCORING,
    audits_differ,
    compared,
    header_differences,
    row_differences,
    unreadable,
    without_scores,
)

ROWS = 100
UNSCORED: dict[str, None] = {"task": None, "length_penalty": None, "reward": None}
OTHER = Digest("0x" + "0e" * 32)


def rows(count: int = ROWS, *, limited: bool = False, **changed: Any) -> list[AuditRow]:
    """Returns rows with changes in the first one; `limited` if their checks have time limits."""
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
            figures={"reward.limited": limited},
        )
        for row in range(count)
    ]
    return [every[0].model_copy(update=changed), *every[1:]]


def undecided(count: int) -> list[AuditRow]:
    return [each.model_copy(update={"task": None, "reward": None}) if each.row < count else each for each in rows()]


def unscored(*places: int) -> list[AuditRow]:
    return [each.model_copy(update=UNSCORED) if each.row in places else each for each in rows()]


def differences(
    theirs: list[AuditRow],
    own: list[AuditRow] | None = None,
    *,
    limited: bool = True,
    scoring: timedelta = SHORT_SCORING,
) -> tuple[AuditFinding, ...]:
    return row_differences(theirs, rows(limited=limited) if own is None else own, scoring=scoring)


@pytest.mark.parametrize(
    ("theirs", "limited", "wrong"),
    [
        (rows(), False, []),
        (rows(reward=0.75), False, [0]),
        (rows(reward=-1e30), True, [0]),  # a decided reward is the same for every validator
        (rows(group=7), False, [0]),
        (rows(sample=7), False, [0]),
        (rows(prompt_index=7), False, [0]),
        (rows(task=1.0), False, [0]),
        (rows(task=float("nan")), True, [0]),
        (rows(task=None), True, [0]),  # the trainer would drop its group
        (rows(length_penalty=0.5), False, [0]),
        (rows(length_penalty=None), True, [0]),
        (rows(task=None, reward=None, length_penalty=0.5), True, [0]),
        (rows()[1:], False, [None, 0]),
        (rows(ROWS + 1), False, [None]),
        (rows(row=1), False, [None, 0]),
        (undecided(1), False, [0]),  # no row may be undecided there
        (undecided(5), True, []),
        (undecided(6), True, [0, 1, 2, 3, 4, 5]),
        (unscored(*range(20, ROWS)), True, []),  # the judge's time limit for scoring was reached
        (unscored(*range(20, ROWS)), False, list(range(20, ROWS))),
        (unscored(*range(20, 40)), True, list(range(20, 40))),  # later rows were scored
        (rows(reward=9.0)[:1] + unscored(*range(20, ROWS))[1:], True, [0]),
    ],
)
def test_a_judges_impossible_row_results_are_reported(
    theirs: list[AuditRow], limited: bool, wrong: list[int | None]
) -> None:
    found = differences(theirs, limited=limited)
    assert [each.row for each in found] == wrong
    assert audits_differ([compared(found, note="")]) is bool(wrong)


def test_rows_that_this_validator_cannot_decide_accuse_no_other_validator() -> None:
    assert differences(rows(), undecided(50)) == differences(rows(), unscored(*range(50))) == ()
    assert differences(rows(reward=9.0), list(without_scores(rows()))) == ()
    assert [each.row for each in differences(rows(group=9), list(without_scores(rows())))] == [0]


def test_a_judge_cannot_claim_a_timeout_where_scoring_is_short() -> None:
    found = differences(unscored(*range(20, ROWS)), scoring=SHORT_SCORING - timedelta(seconds=1))
    assert [each.row for each in found] == list(range(20, ROWS))


def test_one_row_of_a_short_file_may_be_undecided() -> None:
    theirs = [rows(3)[0].model_copy(update={"task": None, "reward": None}), *rows(3)[1:]]
    assert differences(theirs, rows(3, limited=True)) == ()
    assert len(differences(theirs, rows(3))) == 1


def test_in_a_mixture_only_rows_with_limits_may_be_undecided() -> None:
    own = [each.model_copy(update={"figures": {"reward.limited": each.row % 2 == 0}}) for each in rows()]
    assert [each.row for each in differences(undecided(4), own)] == [1, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": OTHER},
        {"sha256": OTHER},
        {"outcome": Outcome.REJECTED},
        {"step": 99},
        {"node": address("0x" + "0e" * 20)},
        {"checkpoint": OTHER},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_audit_file_of_other_work_is_reported(wrong: dict[str, Any]) -> None:
    """The trainer then drops the whole file."""
    item = replace(work(), units=10)
    honest = audit_of(item, Key.generate().address, audited=range(10))
    assert header_differences(honest, item) == ()
    (found,) = header_differences(honest.model_copy(update=wrong), item)
    assert f"has {next(iter(wrong))}" in found.what


def test_the_evidence_lists_a_bounded_number_of_rows_and_counts_all() -> None:
    check = compared(differences(undecided(ROWS)), note="compared")
    assert (check.state, len(check.findings), check.found) == (CheckState.FAILED, MOST_FINDINGS, ROWS)
    assert audits_differ([compared([unreadable("x" * 5000)], note="no audit file")])
