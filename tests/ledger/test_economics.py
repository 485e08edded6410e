"""Costs of attacks in a pool with the default terms, and edge cases of these figures."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from ledger.amounts import UNIT
from ledger.economics import (
    CONFIRMED_FROM,
    chances,
    collusion,
    fees,
    poisoning,
    stalling,
    sybils,
)
from protocol.errors import InvalidInput
from tests.kit.economics import ESCROW, RULES, TERMS, economics  # noqa: F401


def test_the_reward_is_for_the_file_and_the_penalty_for_the_whole_lease() -> None:
    whole, one = economics(), economics(units=1, max_units=384)
    assert (whole.pays, whole.costs_if_forged) == (384 * UNIT // 10_000, 3456 * UNIT // 10_000)
    assert (one.pays, one.costs_if_forged) == (UNIT // 10_000, whole.costs_if_forged)
    assert whole.stake_for_open_work == 8 * whole.costs_if_forged
    with pytest.raises(InvalidInput, match="can't hold a file of 384"):
        economics(max_units=383)


def test_a_lost_dispute_costs_a_tenth_of_the_leases_penalty_and_a_won_one_nothing() -> None:
    one = economics(units=1, max_units=384)
    assert one.lost_dispute_costs == 3456 * UNIT // 100_000
    assert one.raw()["lost_dispute_costs"] == "34560000000000000"
    assert one.lines()["disputing its rejection costs"] == (
        "nothing if the dispute is won, 0.03456 MUST if it is lost (10 % of that penalty)"
    )


def test_a_submission_reserves_three_fees_and_the_escrow_covers_fewer_submissions() -> None:
    found = economics()
    assert found.reserved == found.pays + 3 * TERMS.verdict_fee
    assert found.submissions_covered == 9 * UNIT // found.reserved


@pytest.mark.parametrize(("rows", "drawn"), [(64, 7), (16, 2), (1, 1)])
def test_a_detected_bad_row_costs_the_penalty_of_the_whole_file(rows: int, drawn: int) -> None:
    whole = economics()
    found = poisoning(whole, rows=rows, drawn=drawn)
    assert found.if_caught == whole.costs_if_forged + whole.pays
    assert found.caught == drawn / rows
    if rows > drawn:
        assert found.per_learned_row == found.if_caught * drawn // (rows - drawn)
        assert found.per_learned_row >= whole.pays, "less than honest work would have been paid"


def test_claiming_one_unit_does_not_make_a_bad_row_cheaper() -> None:
    whole, one = (poisoning(each, rows=64, drawn=7) for each in (economics(), economics(1, 384)))
    assert one.if_caught >= whole.if_caught - economics().pays


ACCEPTED, REJECTED, FORGED = 1, 2, 3


def played(n: int, k: int, *, first_is_corrupt: bool, disputer: str, forged: bool) -> Fraction:
    """Plays the contract's rules with every order of the validators that may decide.

    Returns the share of the orders in which the corrupt validators succeed: a forged file is accepted, or an honest one
    slashed.
    """
    truth, wish = (FORGED, ACCEPTED) if forged else (ACCEPTED, FORGED)
    seats = [True] * k + [False] * (n - k)
    first = wish if first_is_corrupt else truth
    for corrupt in [first_is_corrupt, *({"corrupt": [True], "honest": [False]}.get(disputer, []))]:
        if corrupt not in seats:
            return Fraction(int(first == wish))  # nobody disputes
        seats.remove(corrupt)
    orders = list(itertools.permutations(seats))
    return Fraction(sum(outcome(order, first, truth, wish, n) == wish for order in orders), len(orders))


def outcome(order: tuple[bool, ...], first: int, truth: int, wish: int, n: int) -> int:
    said = [wish if corrupt else truth for corrupt in order]
    if not said:
        return REJECTED if first == FORGED else first  # undecided: no penalty
    if n < CONFIRMED_FROM or said[0] == first:
        return said[0]
    return sorted([first, *said[:2]])[1]


@pytest.mark.parametrize("n", range(1, 8))
def test_corrupt_validators_win_as_often_as_enumerating_all_orders_gives(n: int) -> None:
    for k in range(1, n + 1):
        found = chances(validators=n, corrupt=k)
        assert found.launders_first == played(n, k, first_is_corrupt=True, disputer="honest", forged=True)
        assert found.frames_first == played(n, k, first_is_corrupt=True, disputer="node", forged=False)
        if k < n:
            by_dispute = played(n, k, first_is_corrupt=False, disputer="node", forged=True)
            assert found.launders_by_dispute == by_dispute
            framed = played(n, k, first_is_corrupt=False, disputer="corrupt", forged=False)
            assert found.frames_by_dispute == framed


def test_the_chances_match_the_table_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audits.md").read_text()
    rows = re.findall(r"^\| (\d) \| (\d) \| ([\d/]+) \| ([\d/]+) \| ([\d/]+) \| ([\d/]+) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for n, k, *shown in rows:
        found = chances(validators=int(n), corrupt=int(k))
        parts = (found.launders_by_dispute, found.launders_first, found.frames_first, found.frames_by_dispute)
        assert [str(part) for part in parts] == shown


def test_one_corrupt_validator_of_four_or_more_never_wins_a_dispute() -> None:
    for n in (4, 5, 7, 64):
        found = collusion(economics(), validators=n, corrupt=1, looked_at=0.2)
        assert (found.launders_by_dispute, found.frames) == (0, 0)
        assert found.launders_first == pytest.approx(0.8), "accepted files without a second look stay accepted"
        assert found.gain < 0


def test_with_three_validators_a_corrupt_one_launders_half_of_its_disputes() -> None:
    assert collusion(economics(), validators=3, corrupt=1, looked_at=0.2).launders_by_dispute == 0.5


@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 3), (4, 4)])
def test_with_all_validators_corrupt_every_file_is_laundered(n: int, k: int) -> None:
    found = collusion(economics(), validators=n, corrupt=k, looked_at=1.0)
    assert found.launders_by_dispute == found.launders_first == 1
    assert found.gain == economics().pays


def test_without_corrupt_validators_nothing_is_gained_and_more_than_all_are_refused() -> None:
    none = collusion(economics(), validators=4, corrupt=0, looked_at=0.2)
    assert (none.launders_by_dispute, none.launders_first, none.frames, none.gain) == (0, 0, 0, 0)
    with pytest.raises(InvalidInput, match="5 of 4 validators"):
        collusion(economics(), validators=4, corrupt=5, looked_at=0.2)


def test_with_two_validators_a_corrupt_one_is_never_overruled() -> None:
    found = collusion(economics(), validators=2, corrupt=1, looked_at=1.0)
    assert found.launders_first == 1, "its own verdict stands, because there is no third validator"
    assert found.frames == 0, "an undecided dispute removes the penalty"


def test_stalling_a_run_takes_many_ghost_nodes_and_few_slow_ones() -> None:
    ghost, absent, slow = stalling(TERMS, economics(), RULES)
    assert ghost.nodes == -(-3600 // (11 * 5)), "five leases before the first pause, six after it"
    assert ghost.stake_bound == ghost.nodes * (10 * UNIT + 11 * economics().costs_if_forged)
    assert absent.nodes == 1
    assert (slow.nodes, slow.slowed_to, slow.pay_missed) == (3, 0.25, 0)
    noticed_later = stalling(TERMS, economics(), replace(RULES, found_after=timedelta(seconds=900)))
    assert noticed_later[0].nodes == 1, "under the former rules one ghost key stops a run"


def test_delivery_rules_without_durations_are_refused() -> None:
    with pytest.raises(InvalidInput, match="above zero"):
        replace(RULES, pause=timedelta())
    with pytest.raises(InvalidInput, match="above zero"):
        replace(RULES, least=0)


def test_each_additional_key_locks_stake_for_membership_and_open_work() -> None:
    found = sybils(TERMS, economics(), honest_files=32)
    assert found.binds == 10 * UNIT + 8 * economics().costs_if_forged
    assert found.work_before == 32 * economics().pays


@pytest.mark.parametrize(("cost", "pays"), [(0, True), (UNIT // 1_000 - 1, True), (UNIT // 1_000, False)])
def test_second_looks_pay_while_a_look_costs_less_than_the_fee(cost: int, pays: bool) -> None:
    found = fees(TERMS, economics(), cost=cost)
    assert found.pays is pays
    assert found.per_submission == TERMS.verdict_fee * 105 // 100
    assert found.most_per_submission == 3 * TERMS.verdict_fee


def test_without_a_verdict_fee_second_looks_do_not_pay() -> None:
    found = fees(replace(TERMS, verdict_fee=0), economics(), cost=0)
    assert (found.pays, found.per_submission, found.of_reward) == (False, 0, 0)
