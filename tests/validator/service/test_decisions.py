"""Decisions of the validator that need neither chain nor clock, as case tables and properties."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from ledger.client.event_follower import ObservedEvent
from ledger.client.work import WorkRecord, WorkStatus
from ledger.events.types import (
    LedgerEvent,
    SecretCommitted,
    VerdictConfirmed,
    VerdictContradicted,
    VerdictGiven,
    WorkDisputed,
    WorkExpired,
    WorkFinal,
    WorkSubmitted,
)
from ledger.transactions.receipts import EventLog
from protocol.identifiers import ZERO_DIGEST, Address
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditFile
from tests.kit.scripted_examiner import concluded
from tests.kit.submissions import NODE, POOL, sha, work
from validator.assignment.eligibility import Next, eligibility_of
from validator.assignment.liveness import awake_of, rank_here
from validator.audit.draw import RowDraw
from validator.domain.items import LOOKS, Item, ItemKind, Resolution, item_id
from validator.metrics import MOST_CODES, ValidatorMetrics, quantile
from validator.queue.error_class import ENDS_EXAMINERS, ErrorClass, classify_error
from validator.queue.queue_plan import Periods, QueueChanges, plan_of
from validator.queue.retry_policy import GiveUpReason, RetryPolicy, next_step
from validator.verdicts.audit_file import DrawnRows, audit_file, by_hand

ME, OTHER, PROVIDER, THIRD, VALIDATOR = (Key.generate().address for _ in range(5))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBMITTED = work()
ON_LEDGER = WorkRecord(
    node=NODE.address,
    provider=PROVIDER,
    pool_id=POOL,
    units=SUBMITTED.units,
    max_units=SUBMITTED.max_units,
    sha256=SUBMITTED.sha256,
    status=WorkStatus.SUBMITTED,
    outcome=None,
    reason=0,
    judge=None,
    looker=None,
    disputer=None,
    juror=None,
    opinion=None,
    since=NOW,
    deadline=NOW + timedelta(hours=1),
    reward=1,
    penalty=2,
)
JUDGED = replace(ON_LEDGER, status=WorkStatus.PROVISIONAL, outcome=Outcome.ACCEPTED, judge=OTHER)
DISPUTED = replace(JUDGED, status=WorkStatus.DISPUTED, disputer=THIRD)


@pytest.mark.parametrize(
    ("found", "kind", "me", "now", "expected"),
    [
        (ON_LEDGER, ItemKind.FIRST, ME, NOW, Next.EXAMINE),
        (ON_LEDGER, ItemKind.FIRST, ME, NOW + timedelta(hours=1), Next.EXAMINE),
        (ON_LEDGER, ItemKind.FIRST, ME, NOW + timedelta(hours=1, seconds=1), Next.DROP),
        (None, ItemKind.FIRST, ME, NOW, Next.DROP),
        (JUDGED, ItemKind.FIRST, ME, NOW, Next.DROP),
        (ON_LEDGER, ItemKind.FIRST, NODE.address, NOW, Next.LEAVE),
        (ON_LEDGER, ItemKind.FIRST, PROVIDER, NOW, Next.LEAVE),
        (JUDGED, ItemKind.SECOND_LOOK, ME, NOW, Next.EXAMINE),
        # another validator on this Redis requested a second look
        (JUDGED, ItemKind.SECOND_LOOK, OTHER, NOW, Next.LEAVE),
        (ON_LEDGER, ItemKind.SECOND_LOOK, ME, NOW, Next.DROP),
        (DISPUTED, ItemKind.SECOND_LOOK, ME, NOW, Next.DROP),
        (DISPUTED, ItemKind.DISPUTE, ME, NOW, Next.EXAMINE),
        (DISPUTED, ItemKind.DISPUTE, OTHER, NOW, Next.LEAVE),
        (DISPUTED, ItemKind.DISPUTE, THIRD, NOW, Next.LEAVE),
        (DISPUTED, ItemKind.DISPUTE, PROVIDER, NOW, Next.LEAVE),
        # it contradicted the verdict; a second one decides
        (replace(DISPUTED, juror=ME), ItemKind.DISPUTE, ME, NOW, Next.LEAVE),
        (replace(DISPUTED, juror=VALIDATOR), ItemKind.DISPUTE, ME, NOW, Next.EXAMINE),
        (JUDGED, ItemKind.PAID_LOOK, ME, NOW, Next.EXAMINE),
        (JUDGED, ItemKind.PAID_LOOK, OTHER, NOW, Next.LEAVE),
        (replace(JUDGED, looker=VALIDATOR), ItemKind.PAID_LOOK, ME, NOW, Next.DROP),  # one second look is paid
        (replace(JUDGED, looker=VALIDATOR), ItemKind.SECOND_LOOK, ME, NOW, Next.EXAMINE),
        (DISPUTED, ItemKind.PAID_LOOK, ME, NOW, Next.DROP),
        (replace(DISPUTED, status=WorkStatus.FINAL, deadline=None), ItemKind.DISPUTE, ME, NOW, Next.DROP),
    ],
)
def test_the_next_action_follows_from_the_works_state_on_the_ledger(
    found: WorkRecord | None, kind: ItemKind, me: Address, now: datetime, expected: Next
) -> None:
    assert eligibility_of(found, submitted=SUBMITTED, kind=kind, me=me, now=now).next is expected
    for other in (replace(SUBMITTED, sha256=sha(99)), replace(SUBMITTED, units=SUBMITTED.units + 1)):
        assert eligibility_of(found, submitted=other, kind=kind, me=me, now=now).next is Next.DROP, "it differs"


# Retry policy

ENDING_BY_THEMSELVES = (
    "file-absent",
    "block-not-there",
    "transaction-not-mined",
    "chain-unavailable",
    "store-unavailable",
    "unreachable",
    "no-answer",
    "transfer-failed",
    "rate-limited",
    "http-502",
    "http-503",
    "http-504",
)


@given(
    code=st.sampled_from(ENDING_BY_THEMSELVES),
    retryable=st.booleans(),
    tries=st.integers(0, 10_000),
    left=st.timedeltas(timedelta(days=-1), timedelta(days=1)),
)
def test_errors_that_end_by_themselves_do_not_count_and_are_retried_after_a_pause(
    code: str, retryable: bool, tries: int, left: timedelta
) -> None:
    patience = RetryPolicy()
    step = next_step(code, retryable=retryable, tries=tries, left=left, policy=patience)
    assert (step.counted, step.gives_up) == (False, GiveUpReason.NONE)
    assert patience.first <= step.pause <= patience.most


@given(asked=st.timedeltas(timedelta(), timedelta(days=365)), code=st.sampled_from(["rate-limited", "x"]))
def test_a_requested_wait_never_delays_work_beyond_its_deadline(asked: timedelta, code: str) -> None:
    left = timedelta(minutes=20)
    step = next_step(code, retryable=True, tries=0, left=left, policy=RetryPolicy(), asked_to_wait=asked)
    assert step.pause <= left / 4
    assert step.pause >= min(asked, left / 4)


@given(tries=st.integers(0, 100), left=st.timedeltas(timedelta(), timedelta(days=1)))
def test_other_errors_count_and_work_that_cannot_be_retried_in_time_is_given_up(tries: int, left: timedelta) -> None:
    patience = RetryPolicy(attempts=5)
    step = next_step("x", retryable=True, tries=tries, left=left, policy=patience)
    assert step.counted
    assert (step.gives_up is GiveUpReason.ATTEMPTS_USED) == (left < patience.pause(tries))


@pytest.mark.parametrize(
    ("code", "retryable", "expected", "gives_up"),
    [
        ("file-absent", True, ErrorClass.ALL_VALIDATORS, GiveUpReason.NONE),
        ("block-not-there", True, ErrorClass.ALL_VALIDATORS, GiveUpReason.NONE),
        ("chain-unavailable", True, ErrorClass.SERVICE, GiveUpReason.NONE),
        ("transfer-failed", True, ErrorClass.SERVICE, GiveUpReason.NONE),
        ("no-sandbox", True, ErrorClass.UNKNOWN, GiveUpReason.NONE),
        ("disk-full", True, ErrorClass.UNKNOWN, GiveUpReason.NONE),
        ("no-policy", True, ErrorClass.UNKNOWN, GiveUpReason.NONE),
        ("examiner-died", False, ErrorClass.UNKNOWN, GiveUpReason.ATTEMPTS_USED),
        ("no-calibration", False, ErrorClass.REQUIREMENT, GiveUpReason.REQUIREMENT),
        ("too-large-here", False, ErrorClass.REQUIREMENT, GiveUpReason.REQUIREMENT),
        ("a-code-of-tomorrow", False, ErrorClass.REQUIREMENT, GiveUpReason.REQUIREMENT),
        ("a-code-of-tomorrow", True, ErrorClass.UNKNOWN, GiveUpReason.NONE),
    ],
)
def test_errors_are_classified_by_cause(
    code: str, retryable: bool, expected: ErrorClass, gives_up: GiveUpReason
) -> None:
    assert classify_error(code, retryable=retryable) is expected
    left = timedelta(hours=1)
    step = next_step(code, retryable=retryable, tries=0, left=left, policy=RetryPolicy())
    assert step.gives_up is gives_up
    assert step.for_all == (expected is ErrorClass.ALL_VALIDATORS)


@pytest.mark.parametrize("code", sorted(ENDS_EXAMINERS))
def test_a_process_that_an_item_may_have_ended_counts_for_item_and_validator(code: str) -> None:
    assert classify_error(code, retryable=False) is ErrorClass.UNKNOWN


def test_error_codes_from_outside_create_a_bounded_number_of_metrics() -> None:
    registry = CollectorRegistry()
    metrics = ValidatorMetrics(registry, clock=SystemClock())
    for number in range(10 * MOST_CODES):
        metrics.count_error(f"new-{number}", parked=False)
    metrics.count_error("new-0", parked=False)
    shown = generate_latest(registry).decode()
    assert shown.count("muster_validator_troubles_total{") <= MOST_CODES + 1
    assert 'muster_validator_troubles_total{code="new-0",parked="false"} 2.0' in shown


# Order of validators


@given(key=st.integers(0, 2**64), count=st.integers(1, 6), ours=st.integers(1, 6))
def test_exactly_one_of_several_independent_validators_begins_at_once(key: int, count: int, ours: int) -> None:
    everybody = VALIDATORS[:count]
    ranks = sorted(rank_here(sha(key), here=[each], awake=everybody) for each in everybody)
    assert ranks == list(range(count))
    together = rank_here(sha(key), here=everybody[:ours], awake=everybody)
    assert together == min(rank_here(sha(key), here=[each], awake=everybody[ours:] or []) for each in everybody[:ours])


VALIDATORS = [Key.generate().address for _ in range(6)]


def test_no_validator_waits_for_a_silent_one() -> None:
    heard = {OTHER: NOW - timedelta(minutes=5), THIRD: NOW - timedelta(hours=3), PROVIDER: NOW}
    awake = awake_of([ME, OTHER, THIRD], heard, now=NOW, within=timedelta(hours=1))
    assert awake == {OTHER}, "one is silent, one is no validator, and this one has left no trace on the ledger"
    assert rank_here(sha(1), here=[ME], awake=[]) == 0


# Events


PERIODS = Periods(judge=timedelta(seconds=60), challenge=timedelta(seconds=600), dispute=timedelta(seconds=6000))
LOG = EventLog(address=ME, topics=(), data=b"", block_number=3, block_hash=ZERO_DIGEST, transaction=sha(9), index=0)


def submitted(number: int) -> WorkSubmitted:
    made = work(number)
    log = replace(LOG, block_number=made.block)
    return WorkSubmitted(
        log=log,
        pool_id=POOL,
        node=made.node,
        key=made.key,
        run=made.run,
        step=made.step,
        index=made.index,
        version=made.version,
        checkpoint=made.checkpoint,
        beacon_block=made.beacon_block,
        salt=made.salt,
        groups=made.groups,
        max_units=made.max_units,
        sha256=made.sha256,
        units=made.units,
    )


def judged(number: int, *, decisive: bool = False, pool: int = POOL) -> VerdictGiven:
    return VerdictGiven(
        log=LOG,
        pool_id=pool,
        node=NODE.address,
        key=sha(number),
        validator=OTHER,
        outcome=Outcome.ACCEPTED,
        reason=0,
        audit_hash=sha(5),
        decisive=decisive,
    )


def disputed(number: int) -> WorkDisputed:
    return WorkDisputed(log=LOG, pool_id=POOL, node=NODE.address, key=sha(number), disputer=THIRD, evidence_hash=sha(6))


def contradicted(number: int) -> VerdictContradicted:
    return VerdictContradicted(
        log=LOG,
        pool_id=POOL,
        node=NODE.address,
        key=sha(number),
        validator=THIRD,
        outcome=Outcome.FORGED,
        reason=900,
        audit_hash=sha(7),
    )


def confirmed(number: int) -> VerdictConfirmed:
    return VerdictConfirmed(
        log=LOG, pool_id=POOL, node=NODE.address, key=sha(number), validator=THIRD, reason=0, audit_hash=sha(7)
    )


def final(number: int) -> WorkFinal:
    return WorkFinal(
        log=LOG, pool_id=POOL, node=NODE.address, key=sha(number), outcome=Outcome.ACCEPTED, paid=1, slashed=0
    )


def expired(number: int) -> WorkExpired:
    return WorkExpired(log=LOG, pool_id=POOL, node=NODE.address, key=sha(number))


def plan(*events: LedgerEvent | tuple[LedgerEvent, str]) -> QueueChanges:
    told = [
        ObservedEvent(event[0], reverted=True) if isinstance(event, tuple) else ObservedEvent(event) for event in events
    ]
    return plan_of(told, pool_id=POOL, at=1000, periods=PERIODS)


def test_only_unjudged_submissions_of_ten_thousand_events_are_queued() -> None:
    events: list[LedgerEvent] = []
    for number in range(1, 10_001):
        events.append(submitted(number))
        if number != 5_000:
            events += [judged(number), final(number)]
    found = plan(*events)
    assert list(found.put) == [sha(5_000)]
    assert found.put[sha(5_000)] == work(5_000)
    assert found.due == {sha(5_000): 1060}


@pytest.mark.parametrize(
    ("events", "put", "due", "dropped"),
    [
        ([submitted(1)], True, 1060, set()),
        ([submitted(1), judged(1)], False, 1600, {ItemKind.FIRST}),
        ([submitted(1), judged(1), disputed(1)], False, 7000, {ItemKind.FIRST, *LOOKS}),
        ([contradicted(1), confirmed(1)], False, None, set()),
        ([judged(1, decisive=True)], False, None, set(ItemKind)),
        ([final(1)], False, None, set(ItemKind)),
        ([submitted(1), expired(1)], False, None, set(ItemKind)),
        ([submitted(1), (submitted(1), "gone")], False, None, set(ItemKind)),
        ([(submitted(1), "gone"), submitted(1)], True, 1060, set(ItemKind)),
        ([judged(1, pool=POOL + 1)], False, None, set()),
    ],
)
def test_the_effect_of_events_on_the_queue(
    events: Sequence[LedgerEvent], put: bool, due: int | None, dropped: set[ItemKind]
) -> None:
    found = plan(*events)
    assert (sha(1) in found.put) == put
    assert found.due.get(sha(1)) == due
    assert found.drop == {item_id(sha(1), kind) for kind in dropped}


def test_work_whose_verdict_a_reorg_removed_is_queued_again() -> None:
    assert plan((judged(1), "gone")).lost == {sha(1): NODE.address}
    assert plan((judged(1), "gone"), judged(1)).lost == {}, "it was mined again at once"
    both = plan((judged(1), "gone"), (submitted(1), "gone"))
    assert (both.lost, both.put) == ({}, {}), "the submission was removed with it"


def test_a_validator_counts_as_live_when_it_judges_confirms_or_begins_an_epoch() -> None:
    begun = SecretCommitted(log=LOG, pool_id=POOL, validator=ME, epoch=1, commitment=sha(2))
    assert plan(judged(1), begun).heard == {OTHER: 1000, ME: 1000}
    assert plan(contradicted(1)).heard == plan(confirmed(1)).heard == {THIRD: 1000}


# Evidence


def item(kind: ItemKind = ItemKind.FIRST) -> Item:
    return Item(work=work(1), kind=kind, deadline_s=0, seen_ms=0)


def test_an_audit_file_contains_all_findings_and_is_read_back_unchanged() -> None:
    drawn = DrawnRows(draw=RowDraw(seed=b"s" * 32, share=0.5), epoch=3, block=2, why="a node that proves itself")
    found = concluded(Outcome.FORGED, ReasonCode.REWARD_DIFFERS, audited=(1,), words="row 1 earns 0, and says 1")
    made = audit_file(item(), found, drawn=drawn, validator=ME, at=NOW)
    assert AuditFile.decode(made.encode()) == made
    told: dict[str, Any] = json.loads(made.encode())
    assert told["draw"] == {"epoch": 3, "block": 2, "share": 0.5, "why": "a node that proves itself", "rows": [1]}
    assert (told["key"], told["node"], told["reason"]) == (sha(1), NODE.address, 700)
    assert not made.second_look
    assert audit_file(item(ItemKind.DISPUTE), found, drawn=drawn, validator=ME, at=NOW).second_look


def test_an_audit_file_without_recomputation_claims_no_draw() -> None:
    drawn = DrawnRows(draw=RowDraw(seed=None, share=1.0), why="a new node")
    found = concluded(Outcome.FORGED, ReasonCode.FORMAT_UNREADABLE, audited=(), rows=())
    assert audit_file(item(), found, drawn=drawn, validator=ME, at=NOW).draw is None
    decided = by_hand(Resolution(outcome=Outcome.ACCEPTED, words="I looked", by="boss"))
    assert audit_file(item(), decided, drawn=None, validator=ME, at=NOW).reason == ReasonCode.RESOLVED_BY_HAND


@given(values=st.lists(st.floats(0, 100), min_size=1), share=st.floats(0.01, 1))
def test_a_quantile_is_the_value_that_the_given_share_does_not_exceed(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= (found or 0) for value in values) >= share * len(values) - 1e-9
    assert quantile([], share) is None
