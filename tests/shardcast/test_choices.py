"""Scores of relays, and the schedule of block requests, tested without network and clock."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcast.download.peers import FIRST_QUARANTINE, LONGEST_BACKOFF, RECOVERY_TIME, Peers
from shardcast.download.schedule import BlockClaim, BlockSchedule
from shardcast.errors import FailureKind
from shardcast.manifest.manifest import BlockSpan

AFTER_BACKOFF = LONGEST_BACKOFF.total_seconds()


def peers(**bandwidths: float) -> Peers:
    made = Peers(bandwidths, rng=random.Random(1))
    for name, bandwidth in bandwidths.items():
        made[name].record_bandwidth(bandwidth)
    return made


def shares(made: Peers, now: float) -> dict[str | None, float]:
    drawn = Counter(made.draw(now) for _ in range(4000))
    return {url: count / 4000 for url, count in drawn.items()}


def test_relays_are_drawn_in_proportion_to_success_times_bandwidth() -> None:
    made = peers(fast=3e6, slow=1e6)
    assert shares(made, 0.0)["fast"] == pytest.approx(0.75, abs=0.05)
    for _ in range(30):
        made["fast"].record_failure(FailureKind.STALLED, 0.0)
    assert shares(made, AFTER_BACKOFF)["fast"] < 0.35


def test_a_failed_relay_is_not_drawn_during_its_back_off_and_its_score_recovers() -> None:
    made = peers(a=1e6, b=1e6)
    for _ in range(10):
        made["a"].record_failure(FailureKind.REFUSED, 0.0)
    assert shares(made, 0.0) == {"b": 1.0}
    soon = shares(made, AFTER_BACKOFF).get("a", 0.0)
    later = shares(made, 5 * RECOVERY_TIME.total_seconds()).get("a", 0.0)
    assert soon < 0.2 < later
    assert later == pytest.approx(0.5, abs=0.05)


def test_a_relay_that_sent_a_bad_block_is_quarantined_for_growing_periods() -> None:
    made = peers(liar=1e9, honest=1.0)
    made["liar"].record_failure(FailureKind.BAD_BLOCK, 0.0)
    assert shares(made, AFTER_BACKOFF) == {"honest": 1.0}
    assert made.draw(AFTER_BACKOFF, without={"honest"}) == "liar"
    assert made["liar"].quarantined_until == FIRST_QUARANTINE.total_seconds()
    made["liar"].record_failure(FailureKind.BAD_BLOCK, 100.0)
    assert made["liar"].quarantined_until == 100.0 + 2 * FIRST_QUARANTINE.total_seconds()


def test_no_relay_is_drawn_while_all_are_in_back_off() -> None:
    made = peers(a=1.0)
    made["a"].record_failure(FailureKind.UNREACHABLE, 5.0)
    assert made.draw(5.0) is None
    assert made.next_return(5.0) == pytest.approx(5.1)
    assert made.draw(5.2) == "a"


def test_requests_have_at_most_the_allowed_blocks_and_the_last_blocks_are_divided_among_connections() -> None:
    schedule = BlockSchedule(span_blocks=8)
    schedule.announce([BlockSpan(0, 0, 20)])
    counts = []
    while (claim := schedule.claim(0.0, connections=2)) is not None:
        counts.append(claim.span.count)
    assert counts == [8, 6, 3, 2, 1]


def test_a_few_blocks_of_a_growing_version_wait_for_more_while_a_request_is_in_flight() -> None:
    schedule = BlockSchedule(span_blocks=8)
    schedule.announce([BlockSpan(0, 0, 2)])
    first = schedule.claim(0.0, growing=True)
    assert first is not None
    schedule.announce([BlockSpan(0, 2, 3)])
    assert schedule.claim(1.0, growing=True) is None
    assert schedule.next_gathered() == pytest.approx(1.05)
    schedule.announce([BlockSpan(0, 5, 5)])
    enough = schedule.claim(1.01, growing=True)
    assert enough is not None
    assert (enough.span, schedule.next_gathered()) == (BlockSpan(0, 2, 8), None)


def test_blocks_wait_for_more_only_for_a_limited_time_and_only_while_a_request_is_in_flight() -> None:
    schedule = BlockSchedule(span_blocks=8)
    schedule.announce([BlockSpan(0, 0, 2)])
    first = schedule.claim(0.0, growing=True)
    schedule.announce([BlockSpan(0, 2, 3)])
    assert schedule.claim(1.0, growing=True) is None
    late = schedule.claim(1.06, growing=True)
    assert late is not None
    assert late.span == BlockSpan(0, 2, 3)
    schedule.announce([BlockSpan(0, 5, 1)])
    for claim in (first, late):
        assert claim is not None
        for block in list(claim.remaining):
            schedule.record_block(claim, block, 1.1)
        schedule.release(claim)
    alone = schedule.claim(1.1, growing=True)
    assert alone is not None
    assert alone.span == BlockSpan(0, 5, 1)


def test_a_hedge_requests_the_second_half_of_the_missing_blocks_of_the_latest_claim() -> None:
    schedule = BlockSchedule(span_blocks=4)
    schedule.announce([BlockSpan(0, 0, 8)])
    slow, quick = schedule.claim(0.0), schedule.claim(1.0)
    assert slow is not None
    assert quick is not None
    schedule.record_block(slow, 0, 1.0)
    schedule.record_block(quick, 4, 2.5)
    assert schedule.hedge(2.0, after=1.5) is None
    hedge = schedule.hedge(2.6, after=1.5)
    assert hedge is not None
    assert (hedge.span, hedge.hedge_of) == (BlockSpan(0, 2, 2), slow)
    assert schedule.hedge(2.7, after=1.5) is None
    schedule.record_block(hedge, 2, 2.8)
    assert schedule.record_block(hedge, 3, 2.9) == []
    schedule.release(hedge)
    again = schedule.hedge(3.0, after=1.5)
    assert again is not None
    assert again.span == BlockSpan(0, 1, 1)
    assert schedule.record_block(again, 1, 3.1) == [slow]
    assert schedule.missing == 3


def test_a_slow_claim_and_its_hedge_deliver_no_block_twice() -> None:
    schedule = BlockSchedule(span_blocks=16)
    schedule.announce([BlockSpan(0, 0, 16)])
    slow = schedule.claim(0.0)
    assert slow is not None
    hedge = schedule.hedge(2.0, after=1.5)
    assert hedge is not None
    for step in range(8):
        assert schedule.record_block(slow, step, 2.0) == []
        assert schedule.record_block(hedge, hedge.span.first + step, 2.0) == ([slow] if step == 7 else [])
    assert schedule.missing == 0


@given(announced=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=6), seed=st.integers(0))
def test_every_block_arrives_after_any_order_of_claims_and_failures(
    announced: list[tuple[int, int]], seed: int
) -> None:
    schedule, wanted = announced_schedule(announced)
    here: set[tuple[int, int]] = set()
    chance = random.Random(seed)
    claims: list[BlockClaim] = []
    for now in range(200):
        act = chance.choice(["claim", "hedge", "deliver", "deliver", "fail"])
        if act in {"claim", "hedge"} and len(claims) < 4:
            growing = chance.random() < 0.5
            claim = (
                schedule.claim(now, connections=3, growing=growing)
                if act == "claim"
                else schedule.hedge(now, after=1.0)
            )
            claims += [] if claim is None else [claim]
        elif act == "deliver" and claims:
            deliver_one(schedule, chance.choice(claims), here, now)
        elif act == "fail" and claims:
            schedule.release(claims.pop(chance.randrange(len(claims))))
        assert schedule.missing == len(wanted - here)
    for claim in claims:
        schedule.release(claim)
    while (claim := schedule.claim(200.0)) is not None:
        while claim.remaining:
            deliver_one(schedule, claim, here, 200.0)
        schedule.release(claim)
    assert (here, schedule.missing) == (wanted, 0)


def announced_schedule(announced: list[tuple[int, int]]) -> tuple[BlockSchedule, set[tuple[int, int]]]:
    schedule = BlockSchedule(span_blocks=4)
    ends = Counter[int]()
    for file, count in announced:
        schedule.announce([BlockSpan(file, ends[file], count)])
        ends[file] += count
    return schedule, {(file, block) for file, count in ends.items() for block in range(count)}


def deliver_one(schedule: BlockSchedule, claim: BlockClaim, here: set[tuple[int, int]], now: float) -> None:
    if claim.remaining:
        block = min(claim.remaining)
        schedule.record_block(claim, block, now)
        here.add((claim.span.file, block))
