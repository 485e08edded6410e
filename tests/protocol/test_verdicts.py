"""Reason codes: each has a text, and no reason that leaves doubt may cost stake."""

from __future__ import annotations

import pytest

from protocol.verdicts import ReasonCode


@pytest.mark.parametrize("reason", ReasonCode)
def test_every_reason_code_has_a_sentence_for_the_contributor(reason: ReasonCode) -> None:
    assert reason.words.endswith(".")
    assert 10 < len(reason.words) < 120


def test_unconfirmed_and_infrastructure_reasons_are_not_forgery() -> None:
    innocent = {reason for reason in ReasonCode if not reason.may_be_forgery}
    assert innocent == {
        ReasonCode.PASSED,
        ReasonCode.PASSED_UNDECIDED,
        ReasonCode.FORMAT_OLD,
        ReasonCode.SAMPLING_BUDGET,
        ReasonCode.COMPUTATION_UNCONFIRMED,
        ReasonCode.SAMPLING_UNCONFIRMED,
        ReasonCode.LOG_PROBABILITIES_UNCONFIRMED,
        ReasonCode.INFRASTRUCTURE,
        ReasonCode.RESOLVED_BY_HAND,
    }
