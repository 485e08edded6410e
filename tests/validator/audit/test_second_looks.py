"""Selection of verdicts for a second look, and findings that lead to a dispute."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identifiers import Digest, address, digest
from protocol.verdicts import Outcome
from validator.assignment.turns import delay_of, rank_of
from validator.audit.second_looks import LookPolicy, contradicts, is_chosen

keys = st.binary(min_size=32, max_size=32).map(digest)
addresses = st.binary(min_size=20, max_size=20).map(lambda raw: address("0x" + raw.hex()))
A, R, F = Outcome.ACCEPTED, Outcome.REJECTED, Outcome.FORGED


@pytest.mark.parametrize(
    ("first", "own", "disputed"),
    [
        (A, A, False),
        (A, R, False),  # near the limits: the doubt is counted against the node
        (A, F, True),
        (R, A, True),
        (R, R, False),
        (R, F, True),
        (F, A, True),
        (F, R, True),
        (F, F, False),
    ],
)
def test_missed_forgery_and_unjust_rejections_are_disputed(first: Outcome, own: Outcome, *, disputed: bool) -> None:
    assert contradicts(first, own) is disputed


@given(secret=st.binary(min_size=32, max_size=32), key=keys)
def test_a_share_of_zero_chooses_no_verdict_and_one_of_one_every_verdict(secret: bytes, key: Digest) -> None:
    assert not is_chosen(secret, key, 0)
    assert is_chosen(secret, key, 1)


def test_every_forged_verdict_and_a_small_share_of_others_get_a_second_look() -> None:
    assert [LookPolicy().share(outcome) for outcome in (A, R, F)] == [0.05, 0.25, 1.0]


def test_the_chosen_share_of_verdicts_is_as_configured_and_depends_on_the_secret() -> None:
    named = [digest(number.to_bytes(32, "big")) for number in range(4000)]
    share = LookPolicy().share(Outcome.ACCEPTED)
    one, other = ({key for key in named if is_chosen(bytes([byte]) * 32, key, share)} for byte in (1, 2))
    for chosen in (one, other):
        assert 130 < len(chosen) < 270  # 200, plus or minus five standard deviations; the draws are deterministic
    assert len(one & other) < 40


@given(key=keys, validators=st.lists(addresses, min_size=1, max_size=8, unique=True))
def test_validators_have_distinct_ranks_on_which_all_agree(key: Digest, validators: list[str]) -> None:
    known = [address(each) for each in validators]
    ranks = [rank_of(key, each, known) for each in known]
    assert sorted(ranks) == list(range(len(known)))
    assert ranks == [rank_of(key, each, reversed(known)) for each in known]


@given(key=keys, validators=st.lists(addresses, min_size=2, max_size=8, unique=True), gone=st.integers(0, 7))
def test_removing_a_validator_keeps_the_order_of_the_others(key: Digest, validators: list[str], gone: int) -> None:
    known = sorted(
        (address(each) for each in validators), key=lambda each: rank_of(key, each, map(address, validators))
    )
    left = known[: gone % len(known)] + known[gone % len(known) + 1 :]
    assert [rank_of(key, each, left) for each in left] == list(range(len(left)))


def test_waiting_for_validators_of_lower_rank_never_exceeds_the_time_left() -> None:
    second, minute = timedelta(seconds=1), timedelta(minutes=1)
    assert delay_of(0, takeover=minute, left=timedelta(hours=1)) == timedelta()
    assert delay_of(2, takeover=minute, left=timedelta(hours=1)) == 2 * minute
    assert delay_of(7, takeover=minute, left=6 * second) == 3 * second
    assert delay_of(7, takeover=minute, left=-second) == timedelta()
