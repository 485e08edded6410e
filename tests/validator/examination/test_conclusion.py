"""Verdicts that follow from check results, as case tables."""

from __future__ import annotations

import pytest

from protocol.verdicts import Outcome, ReasonCode
from rollouts.checks import CheckFinding, CheckOutcome, CheckResult, Fails
from validator.examination.conclusion import Prefilled, accepted, forged, scores_differ, statistical

REASONS = {
    "computation": ReasonCode.COMPUTATION_OTHER_MODEL,
    "sampling": ReasonCode.SAMPLING_REPLAY,
    "logprobs": ReasonCode.LOG_PROBABILITIES_DIFFER,
}


def prefilled(failed: str = "", beyond: str = "") -> Prefilled:
    """Returns results of checks 8 to 10, given the names of those that fail, and that fail beyond the margin."""
    results = []
    for name, reason in REASONS.items():
        state = CheckOutcome.FAILED if name in failed.split() else CheckOutcome.PASSED
        findings = (
            (CheckFinding(reason=reason, what=f"{name} is off", row=2, position=5),)
            if state is CheckOutcome.FAILED
            else ()
        )
        fails = Fails.STATISTICAL if findings else None
        results.append(CheckResult(check=name, state=state, fails=fails, findings=findings, found=len(findings)))
    return Prefilled(results=tuple(results), beyond=frozenset(beyond.split()))


TABLE = {
    "both beyond the margin": (
        prefilled("sampling", "sampling"), prefilled("sampling", "sampling"), ReasonCode.SAMPLING_REPLAY,
    ),
    "two checks are beyond the margin, and the first is named": (
        prefilled("computation logprobs", "computation logprobs"),
        prefilled("computation logprobs", "computation logprobs"),
        ReasonCode.COMPUTATION_OTHER_MODEL,
    ),
    "only the second of two is beyond the margin": (
        prefilled("computation logprobs", "logprobs"),
        prefilled("computation logprobs", "logprobs"),
        ReasonCode.LOG_PROBABILITIES_DIFFER,
    ),
    "beyond the limits, not the margin": (
        prefilled("computation"), prefilled("computation"), ReasonCode.COMPUTATION_UNCONFIRMED,
    ),
    "the second prefill is within the margin": (
        prefilled("logprobs", "logprobs"), prefilled("logprobs"), ReasonCode.LOG_PROBABILITIES_UNCONFIRMED,
    ),
    "the second prefill passes": (
        prefilled("sampling", "sampling"), prefilled(), ReasonCode.SAMPLING_UNCONFIRMED,
    ),
    "each prefill puts another check beyond the margin": (
        prefilled("computation sampling", "computation"),
        prefilled("computation sampling", "sampling"),
        ReasonCode.COMPUTATION_UNCONFIRMED,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "reason"), TABLE.values(), ids=TABLE)
def test_a_statistical_failure_is_forgery_only_if_two_prefills_exceed_the_margin_in_one_check(
    first: Prefilled, second: Prefilled, reason: ReasonCode
) -> None:
    verdict = statistical(first, second, copy=False)
    assert verdict.reason is reason
    assert verdict.outcome is (Outcome.FORGED if reason.may_be_forgery else Outcome.REJECTED)
    assert "row 2, token 5: " in verdict.words


def test_the_verdict_on_a_failed_copy_mentions_the_copy() -> None:
    both = prefilled("sampling", "sampling")
    verdict = statistical(both, both, copy=True)
    assert verdict.reason is ReasonCode.SAMPLING_REPLAY
    assert "IDENTITY_COPY" in verdict.words


def test_a_file_with_the_outputs_of_another_is_accepted_if_it_passes() -> None:
    verdict = accepted(rows=12, audited=12, copy=True)
    assert (verdict.outcome, verdict.reason) == (Outcome.ACCEPTED, ReasonCode.PASSED)
    assert "another submission" in verdict.words


@pytest.mark.parametrize(
    ("slow", "unscored", "reason"),
    [
        (0, 64, ReasonCode.PASSED),  # time ran out before any row was scored, which is not the file's fault
        (16, 0, ReasonCode.PASSED),
        (17, 0, ReasonCode.PASSED_UNDECIDED),
        (4, 48, ReasonCode.PASSED),  # 4 of 16 scored rows
        (5, 48, ReasonCode.PASSED_UNDECIDED),
    ],
)
def test_unscored_rows_count_neither_as_slow_nor_as_scored(slow: int, unscored: int, reason: ReasonCode) -> None:
    verdict = accepted(rows=64, audited=8, slow=slow, unscored=unscored, copy=False)
    assert (verdict.outcome, verdict.reason) == (Outcome.ACCEPTED, reason)
    assert (f"{unscored} were not scored" in verdict.words) == bool(unscored)


def exact(found: int, *, less: int = 0) -> CheckResult:
    finding = CheckFinding(reason=ReasonCode.REWARD_DIFFERS, what="reward 1, and it is 0", row=0)
    return CheckResult(
        check="reward",
        state=CheckOutcome.FAILED,
        fails=Fails.EXACT,
        findings=(finding,),
        found=found,
        figures={"claimed_less": less},
    )


def test_an_exact_failure_is_forgery_and_states_its_extent() -> None:
    verdict = forged(exact(3))
    assert (verdict.outcome, verdict.reason) == (Outcome.FORGED, ReasonCode.REWARD_DIFFERS)
    assert verdict.words == "reward: row 0: reward 1, and it is 0 (and 2 more)"


@pytest.mark.parametrize(
    ("environment", "found", "rows", "outcome"),
    [
        ("letters", 1, 1000, Outcome.FORGED),
        ("code", 1, 10, Outcome.REJECTED),
        ("code", 2, 10, Outcome.FORGED),
        ("code", 20, 1000, Outcome.REJECTED),
        ("code", 21, 1000, Outcome.FORGED),
    ],
)
def test_a_few_nondeterministic_scores_are_not_forgery(
    environment: str, found: int, rows: int, outcome: Outcome
) -> None:
    assert scores_differ([exact(found)], rows=rows, environments={environment}).outcome is outcome


@pytest.mark.parametrize(
    ("environment", "less", "others", "outcome"),
    [
        ("math", 8, 0, Outcome.REJECTED),
        ("math", 8, 1, Outcome.FORGED),
        ("code", 8, 1, Outcome.REJECTED),
        ("code", 8, 2, Outcome.FORGED),
    ],
)
def test_claiming_too_low_a_reward_is_never_forgery_and_excuses_nothing_else(
    environment: str, less: int, others: int, outcome: Outcome
) -> None:
    verdict = scores_differ([exact(less + others, less=less)], rows=64, environments={environment})
    assert (verdict.outcome, verdict.reason) == (outcome, ReasonCode.REWARD_DIFFERS)
