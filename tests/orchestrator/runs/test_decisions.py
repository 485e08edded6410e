"""Pure decisions of a run, as tables and for random histories: steps, slots, leases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.domain.deliveries import DeliveryTerms, PastLease, judge_deliveries, tried_in_time
from orchestrator.domain.lease_terms import Budget, DeliveryTime, is_late, lease_length, wait_length
from orchestrator.domain.slots import (
    LEASED,
    SPARE,
    Counted,
    Slot,
    SlotEvent,
    SlotState,
    StoredFileState,
    after,
    as_on_ledger,
)
from orchestrator.domain.steps import Asked, StepChoice, StepCount, Window, ask, choose_step
from protocol.verdicts import Outcome, ReasonCode

S, H, C = SlotState, SlotEvent, Counted


# Steps


@pytest.mark.parametrize(
    ("counts", "choice"),
    [
        ({}, StepChoice(3, 8)),
        ({3: StepCount(demand=8, accepted=8)}, StepChoice(4, 8)),
        ({3: StepCount(demand=8, accepted=2, pending=3, leased=2)}, StepChoice(3, 1)),
        ({3: StepCount(demand=8, pending=8), 4: StepCount(demand=8, leased=9)}, StepChoice(5, 8)),
        ({3: StepCount(demand=8, rejected=8), 4: StepCount(demand=0)}, StepChoice(3, 8)),
        ({3: StepCount(demand=8, leased=2, spare=6)}, StepChoice(3, 6)),
        ({3: StepCount(demand=8, leased=7, spare=1)}, StepChoice(3, 1)),
        ({step: StepCount(demand=0) for step in (3, 4, 5)}, StepChoice(5, 0)),
    ],
    ids=[
        "no rollouts yet",
        "has enough",
        "lacks one",
        "pending",
        "rejected counts zero",
        "late counts half",
        "half of one rounds to zero",
        "no demand",
    ],
)
def test_the_smallest_step_with_too_few_rollouts_is_chosen(counts: dict[int, StepCount], choice: StepChoice) -> None:
    window = Window.of(floor=3, version=3, async_level=2)
    assert choose_step(window, counts, default_demand=8) == choice


@pytest.mark.parametrize(
    ("floor", "version", "level", "steps"),
    [(0, 0, 2, [0, 1, 2]), (2, 1, 2, [2, 3]), (0, 4, 0, [4]), (5, 2, 2, []), (0, 3, 1, [3, 4])],
)
def test_the_window_ends_at_the_async_level_ahead_of_the_newest_version(
    floor: int, version: int, level: int, steps: list[int]
) -> None:
    assert list(Window.of(floor=floor, version=version, async_level=level).steps) == steps


def test_an_empty_window_needs_no_rollouts() -> None:
    assert choose_step(Window(5, 4), {}, default_demand=8) == StepChoice(5, 0)


@pytest.mark.parametrize(
    ("now", "groups", "closed", "stated", "asked"),
    [
        ((8, 0), 12, False, False, Asked(12, 0, 2)),
        ((8, 0), 3, False, False, Asked(3, 0, 2)),
        ((8, 0), 8, False, True, None),
        ((8, 0), 7, False, True, None),
        ((8, 1), 9, False, True, Asked(9, 2, 2)),
        ((8, 3), 9, False, True, Asked(8, 3, 3)),
        ((8, 0), 0, True, True, Asked(8, 0, 3)),
    ],
    ids=["first", "first, lower", "again", "lower", "raised", "one round too many", "closed"],
)
def test_demand_requests_of_the_trainer_are_validated(
    now: tuple[int, int], groups: int, asked: Asked | None, *, closed: bool, stated: bool
) -> None:
    count = StepCount(demand=now[0], rounds=now[1])
    assert ask(count, step=2, floor=2, groups=groups, closed=closed, stated=stated, max_rounds=3) == asked
    assert ask(count, step=2, floor=3, groups=groups, closed=closed, stated=stated, max_rounds=3) is None


# Slots

SUBMITTED = Slot(S.SUBMITTED, C.PENDING)
STALE = Slot(S.SUBMITTED, C.NOTHING)
THERE = Slot(S.SUBMITTED, C.PENDING, file=StoredFileState.PRESENT)
GHOST = Slot(S.SUBMITTED, C.NOTHING, file=StoredFileState.ABSENT)
ACCEPTED = Slot(S.PROVISIONAL, C.ACCEPTED, Outcome.ACCEPTED)
FORGED = Slot(S.PROVISIONAL, C.REJECTED, Outcome.FORGED)


@pytest.mark.parametrize(
    ("before", "event", "outcome", "then"),
    [
        (LEASED, H.LEASE_OVER, None, Slot(S.UNDELIVERED, C.NOTHING)),
        (LEASED, H.RELEASED, None, Slot(S.RELEASED, C.RETURNED)),
        (Slot(S.RELEASED, C.RETURNED), H.LEASE_OVER, None, Slot(S.RELEASED, C.NOTHING)),
        (Slot(S.RELEASED, C.RETURNED), H.SUBMITTED, None, SUBMITTED),
        (LEASED, H.LAPSED, None, Slot(S.LAPSED, C.NOTHING)),
        (LEASED, H.SUBMITTED, None, SUBMITTED),
        (Slot(S.UNDELIVERED, C.NOTHING), H.SUBMITTED, None, SUBMITTED),
        (Slot(S.RELEASED, C.NOTHING), H.SUBMITTED, None, SUBMITTED),
        (Slot(S.LAPSED, C.NOTHING), H.SUBMITTED, None, SUBMITTED),
        (SUBMITTED, H.LEASE_OVER, None, SUBMITTED),
        (SUBMITTED, H.RELEASED, None, SUBMITTED),
        (SUBMITTED, H.PENDING_OVER, None, STALE),
        (STALE, H.JUDGED, Outcome.ACCEPTED, ACCEPTED),
        (SUBMITTED, H.JUDGED, Outcome.FORGED, FORGED),
        (SUBMITTED, H.DISPUTED, None, SUBMITTED),
        (FORGED, H.JUDGED, Outcome.ACCEPTED, FORGED),
        (FORGED, H.DISPUTED, None, Slot(S.DISPUTED, C.REJECTED, Outcome.FORGED)),
        (ACCEPTED, H.PENDING_OVER, None, ACCEPTED),
        (
            Slot(S.DISPUTED, C.REJECTED, Outcome.FORGED),
            H.DECIDED,
            Outcome.ACCEPTED,
            Slot(S.DISPUTED, C.ACCEPTED, Outcome.ACCEPTED),
        ),
        (FORGED, H.FINAL, Outcome.REJECTED, Slot(S.FINAL, C.REJECTED, Outcome.REJECTED)),
        (SUBMITTED, H.EXPIRED, None, Slot(S.EXPIRED, C.NOTHING)),
        (LEASED, H.WAIT_OVER, None, SPARE),
        (SPARE, H.SUBMITTED, None, SUBMITTED),
        (SPARE, H.LEASE_OVER, None, Slot(S.UNDELIVERED, C.NOTHING)),
        (SUBMITTED, H.WAIT_OVER, None, SUBMITTED),
        (SUBMITTED, H.FILE_PRESENT, None, THERE),
        (SUBMITTED, H.FILE_ABSENT, None, GHOST),
        (GHOST, H.FILE_PRESENT, None, THERE),
        (GHOST, H.FILE_UNKNOWN, None, SUBMITTED),
        (GHOST, H.PENDING_OVER, None, GHOST),
        (THERE, H.PENDING_OVER, None, Slot(S.SUBMITTED, C.NOTHING, file=StoredFileState.PRESENT)),
        (GHOST, H.EXPIRED, None, Slot(S.EXPIRED, C.NOTHING, file=StoredFileState.ABSENT)),
        (THERE, H.EXPIRED, None, Slot(S.EXPIRED, C.NOTHING, file=StoredFileState.PRESENT)),
        (GHOST, H.JUDGED, Outcome.ACCEPTED, Slot(S.PROVISIONAL, C.ACCEPTED, Outcome.ACCEPTED, StoredFileState.ABSENT)),
        (ACCEPTED, H.FILE_ABSENT, None, ACCEPTED),
        (LEASED, H.FILE_ABSENT, None, LEASED),
        (Slot(S.FINAL, C.ACCEPTED, Outcome.ACCEPTED), H.SUBMITTED, None, Slot(S.FINAL, C.ACCEPTED, Outcome.ACCEPTED)),
        (LEASED, H.JUDGED, Outcome.ACCEPTED, LEASED),
    ],
)
def test_slot_state_transitions(before: Slot, event: SlotEvent, outcome: Outcome | None, then: Slot) -> None:
    assert after(before, event, outcome) == then


def test_the_ledgers_state_replaces_the_slots_state_after_a_reorg() -> None:
    assert as_on_ledger(S.SUBMITTED, None) == SUBMITTED
    assert as_on_ledger(S.PROVISIONAL, Outcome.FORGED) == FORGED
    assert as_on_ledger(S.EXPIRED, None) == Slot(S.EXPIRED, C.NOTHING)


VERDICTS = st.sampled_from([Outcome.ACCEPTED, Outcome.REJECTED, Outcome.FORGED])
NEWS = st.lists(st.tuples(st.sampled_from(SlotEvent), VERDICTS), max_size=12)


@given(history=NEWS, again=st.integers(1, 3))
def test_replayed_events_in_order_change_nothing(history: list[tuple[SlotEvent, Outcome]], again: int) -> None:
    """A cursor promises events at least once, in order, from any earlier position."""
    ledger = [
        news for news in history if news[0] not in {H.LEASE_OVER, H.RELEASED, H.LAPSED, H.PENDING_OVER, H.WAIT_OVER}
    ]
    ledger = [news for news in ledger if not news[0].value.startswith("file-")]
    valid, slot = [], LEASED
    for what, outcome in ledger:
        if after(slot, what, outcome) != slot:
            valid.append((what, outcome))
            slot = after(slot, what, outcome)
    replayed = slot
    if slot.state in {S.FINAL, S.EXPIRED}:
        for what, outcome in valid * again:
            replayed = after(replayed, what, outcome)
        assert replayed == slot
    assert (slot.counted is C.ACCEPTED) <= (slot.outcome is Outcome.ACCEPTED)


class RunMachine(RuleBasedStateMachine):
    """Random history: slots are leased, submitted, judged or lost, and steps are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[tuple[int, int, Slot]] = []
        self.version = self.floor = 0
        self.demand: dict[int, int] = {}

    def counts(self) -> dict[int, StepCount]:
        found = {}
        for step in {*self.demand, *(step for step, _, _ in self.slots)}:
            sums = dict.fromkeys(C, 0)
            for at, groups, slot in self.slots:
                if at == step:
                    sums[slot.counted] += groups
            told = {counted.value: total for counted, total in sums.items() if counted.value}
            found[step] = StepCount(demand=self.demand.get(step, 4), **told)
        return found

    @property
    def window(self) -> Window:
        return Window.of(floor=self.floor, version=self.version, async_level=2)

    @rule(groups=st.integers(1, 4))
    def lease(self, groups: int) -> None:
        choice = choose_step(self.window, self.counts(), default_demand=4)
        if choice.need:
            self.slots.append((choice.step, min(groups, choice.need), LEASED))

    @rule(which=st.integers(0, 30), event=st.sampled_from(SlotEvent), outcome=VERDICTS)
    def happen(self, which: int, event: SlotEvent, outcome: Outcome) -> None:
        if self.slots:
            step, groups, slot = self.slots[which % len(self.slots)]
            then = after(slot, event, outcome)
            assert slot.state not in {S.FINAL, S.EXPIRED} or then == slot, "a final state does not change"
            assert not slot.state.on_ledger or then.state.on_ledger, "a state on the ledger does not return to a lease"
            self.slots[which % len(self.slots)] = (step, groups, then)

    @rule(groups=st.integers(0, 8))
    def raise_demand(self, groups: int) -> None:
        step = self.window.first
        now = self.counts().get(step, StepCount(demand=4))
        asked = ask(
            now, step=step, floor=self.floor, groups=groups, closed=False, stated=step in self.demand, max_rounds=99
        )
        if asked is not None:
            self.demand[step], self.floor = asked.demand, asked.floor

    @rule()
    def close(self) -> None:
        if self.window.first <= self.version + 2:
            self.floor = self.window.first + 1

    @rule()
    def publish(self) -> None:
        self.version += 1

    @invariant()
    def the_chosen_step_is_the_first_that_lacks_something(self) -> None:
        counts, window = self.counts(), self.window
        choice = choose_step(window, counts, default_demand=4)
        lacking = [step for step in window.steps if counts.get(step, StepCount(demand=4)).need]
        assert (choice.step, choice.need > 0) == (lacking[0], True) if lacking else choice.need == 0
        assert not choice.need or choice.step >= max(self.floor, self.version)

    @invariant()
    def nothing_is_leased_twice_over(self) -> None:
        """Checks that leases never exceed the demand; late submissions and new verdicts may."""
        for count in self.counts().values():
            assert count.need == max(0, count.demand - count.accepted - count.pending - count.leased)


TestRun = RunMachine.TestCase
TestRun.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


# Deliveries

TERMS = DeliveryTerms(newest=4, provider_newest=8, least=2, threshold=0.5, rejections=1, pause=timedelta(seconds=10))
PAST = {
    "u": Slot(S.UNDELIVERED, C.NOTHING),
    "r": Slot(S.RELEASED, C.NOTHING),
    "s": Slot(S.FINAL, C.ACCEPTED, Outcome.ACCEPTED),
    "l": Slot(S.LAPSED, C.NOTHING),
    "x": Slot(S.EXPIRED, C.NOTHING),
    "X": Slot(S.EXPIRED, C.NOTHING, file=StoredFileState.PRESENT),
    " ": LEASED,
    "p": SUBMITTED,
    "d": Slot(S.DISPUTED, C.ACCEPTED, Outcome.ACCEPTED),
    "g": GHOST,
    "G": Slot(S.EXPIRED, C.NOTHING, file=StoredFileState.ABSENT),
    "b": Slot(S.FINAL, C.REJECTED, Outcome.REJECTED),
    "f": FORGED,
}


@pytest.mark.parametrize(
    ("past", "delivered", "undelivered", "rests"),
    [
        ("", 0, 0, False),
        ("u", 0, 1, False),
        ("uu", 0, 2, True),
        ("ur", 0, 2, True),
        ("us", 1, 1, False),
        ("uus", 1, 2, True),
        ("ssuuuu", 2, 2, False),
        ("ulll", 0, 1, False),
        ("uxx", 0, 1, False),
        ("uXX", 0, 1, False),
        ("uus ", 1, 2, True),
        ("   uu", 0, 2, True),
        ("lluull", 0, 2, True),
        ("upd", 2, 1, False),
        ("uuup", 1, 3, True),
        ("gg", 0, 2, True),
        ("GG", 0, 2, True),
        ("GsGG", 1, 3, True),
        ("gss", 2, 1, False),
        ("bss", 3, 0, False),
        ("bbs", 2, 1, False),
        ("bbbb", 1, 3, True),
        ("fbb", 1, 2, True),
        ("ubb", 1, 2, True),
    ],
)
def test_delivery_record(past: str, delivered: int, undelivered: int, *, rests: bool) -> None:
    leases = [PastLease(PAST[letter], 5_000) for letter in past]
    judged = judge_deliveries(leases, terms=TERMS, now_ms=6_000)
    assert (judged.delivered, judged.undelivered) == (delivered, undelivered)
    assert judged.resting_until_ms == (15_000 if rests else None)
    rested = judge_deliveries(leases, terms=TERMS, now_ms=15_000)
    assert (rested.resting_until_ms, rested.on_trial) == (None, rests)


def test_throttling_begins_with_the_newest_failure_and_ends_exactly_on_time() -> None:
    leases = [PastLease(PAST["u"], ended) for ended in (5_000, 7_000, 3_000)]
    assert judge_deliveries(leases, terms=TERMS, now_ms=16_999).resting_until_ms == 17_000
    assert judge_deliveries(leases, terms=TERMS, now_ms=17_000).resting_until_ms is None


@pytest.mark.parametrize(
    ("outcome", "reason", "failures"),
    [
        (Outcome.REJECTED, ReasonCode.BOUNDS_ARITHMETIC, 3),
        (Outcome.REJECTED, ReasonCode.BOUNDS_ENVIRONMENT, 3),
        (Outcome.REJECTED, ReasonCode.TERMINATION_EARLY, 2),
        (Outcome.FORGED, ReasonCode.SAMPLING_REPLAY, 2),
        (Outcome.ACCEPTED, ReasonCode.PASSED_UNDECIDED, 2),
        (Outcome.ACCEPTED, ReasonCode.PASSED, 0),
    ],
)
def test_bad_verdicts_beyond_the_free_ones_count_as_undelivered(
    outcome: Outcome, reason: ReasonCode, failures: int
) -> None:
    slot = Slot(S.FINAL, C.NOTHING, outcome)
    judged = judge_deliveries([PastLease(slot, 5_000, reason)] * 3, terms=TERMS, now_ms=6_000)
    assert (judged.undelivered, judged.resting_until_ms) == (failures, 15_000 if failures else None)


@pytest.mark.parametrize(
    ("letter", "undelivered"), [("s", 3), ("p", 3), ("d", 3), ("X", 3), ("b", 3), ("l", 0), (" ", 0), ("g", 3)]
)
def test_late_work_counts_as_undelivered_without_free_ones(letter: str, undelivered: int) -> None:
    leases = [PastLease(PAST[letter], 5_000, late=True)] * 3
    judged = judge_deliveries(leases, terms=TERMS, now_ms=6_000)
    assert (judged.undelivered, judged.on_trial) == (undelivered, undelivered > 0)


def test_a_provider_has_a_longer_window_and_proportionally_more_free_rejections() -> None:
    terms = TERMS.of_provider()
    assert (terms.newest, terms.rejections, terms.least, terms.threshold) == (8, 2, 2, 0.5)
    spread = [PastLease(PAST[letter], 5_000) for letter in "uususuus"]
    assert judge_deliveries(spread, terms=terms, now_ms=6_000).undelivered == 5
    assert judge_deliveries(spread, terms=terms, now_ms=6_000).on_trial


@pytest.mark.parametrize(
    ("state", "outcome", "accused"),
    [
        (S.PROVISIONAL, Outcome.FORGED, True),
        (S.DISPUTED, Outcome.FORGED, True),
        (S.FINAL, Outcome.FORGED, False),
        (S.PROVISIONAL, Outcome.REJECTED, False),
        (S.SUBMITTED, None, False),
    ],
)
def test_work_is_accused_while_a_forgery_verdict_is_not_final(
    state: SlotState, outcome: Outcome | None, *, accused: bool
) -> None:
    assert Slot(state, C.NOTHING, outcome).accused is accused


# Lease durations, and what the escrow covers

LEAST, MOST = timedelta(seconds=30), timedelta(seconds=600)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([], 600),
        ([(20_000, 8)] * 7, 600),
        ([(20_000, 8)] * 8, 80),
        ([(2_000, 8)] * 8, 30),
        ([(200_000, 8)] * 8, 600),
        ([(20_000, 8)] * 5 + [(100, 1)] * 30, 80),
        ([(20_000, 8)] * 5 + [(1_200_000, 8)] * 4, 80),
        ([(20_000, 8)] * 4 + [(60_000, 8)] * 6, 240),
    ],
    ids=[
        "no deliveries",
        "too few",
        "4 medians",
        "least",
        "most",
        "quick small slots",
        "a slow minority",
        "most are late",
    ],
)
def test_a_lease_is_four_times_the_median_delivery(times: list[tuple[int, int]], seconds: int) -> None:
    found = lease_length([DeliveryTime(*each) for each in times], least=LEAST, most=MOST)
    assert found == timedelta(seconds=seconds)


@given(times=st.lists(st.builds(DeliveryTime, st.integers(0, 10**9), st.integers(1, 4096)), max_size=50))
def test_the_lease_duration_is_bounded(times: list[DeliveryTime]) -> None:
    assert LEAST <= lease_length(times, least=LEAST, most=MOST) <= MOST
    assert lease_length(times, least=2 * MOST, most=MOST) == MOST, "the longest applies: escrow covers no more"


@pytest.mark.parametrize(
    ("took", "known", "late"),
    [(50_000, 8, False), (50_001, 8, True), (99_000, 8, True), (99_000, 7, False), (0, 50, False)],
    ids=["at half", "past half", "at the end", "too few deliveries", "at once"],
)
def test_work_is_late_once_its_step_no_longer_waits_for_it(took: int, known: int, *, late: bool) -> None:
    lease, times = timedelta(seconds=100), [DeliveryTime(1_000, 1)] * known
    assert wait_length(lease) == timedelta(seconds=50)
    assert is_late(timedelta(milliseconds=took), times, lease=lease) is late


@given(
    free=st.integers(0, 10**24), price=st.integers(0, 10**18), fees=st.integers(0, 10**18), units=st.integers(1, 10**9)
)
def test_the_escrow_budget_covers_leased_units_with_their_fees(free: int, price: int, fees: int, units: int) -> None:
    budget = Budget.of(free=free, price=price, fees=fees, most=1 << 52)
    leases, open_units = 0, 0
    while leases < 50 and budget.covers(units, open_units=open_units, open_leases=leases):
        leases, open_units = leases + 1, open_units + units
    assert open_units * price + leases * fees <= free
    if leases < 50 and free < 1 << 52:  # rounding costs less than one unit for each lease
        assert (open_units + units) * price + (leases + 1) * (fees + max(price - 1, 0)) + price > free


@pytest.mark.parametrize(
    ("before_the_end_ms", "error", "excused"),
    [
        (30_000, "", True),
        (29_999, "", False),
        (60_000, "EscrowTooLow", True),
        (60_000, "PoolNotActive", True),
        (60_000, "StakeTooLow", False),
        (60_000, "NotMember", False),
        (60_000, "NotRegistered", False),
        (60_000, "Banned", False),
        (60_000, "UnitsOutOfRange", False),
        (60_000, "NodeNotWilling", False),
    ],
)
def test_unrelayed_work_is_excused_if_it_was_timely_and_the_error_was_not_the_nodes(
    before_the_end_ms: int, error: str, *, excused: bool
) -> None:
    assert tried_in_time(handed_in_ms=100_000 - before_the_end_ms, expiry_s=100, error=error) == excused
