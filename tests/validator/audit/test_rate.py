"""Share of recomputed rows: all of new and failed nodes, fewer of proven nodes, never below the floor."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from protocol.verdicts import Outcome
from validator.audit.rate import NEW, AuditRecord, RatePolicy, after, share_of

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
floors = st.floats(1e-4, 1)
policies = st.builds(
    RatePolicy,
    trial=st.integers(1, 50),
    halved_after=st.integers(1, 50),
    trial_after_failure=st.integers(1, 200),
)
histories = st.lists(st.sampled_from(Outcome), max_size=60)


def record_of(history: list[Outcome]) -> AuditRecord:
    record = NEW
    for outcome in history:
        record = after(record, outcome, at=NOW)
    return record


@given(history=histories, clean=st.integers(0, 100_000), floor=floors, policy=policies)
def test_the_audit_share_is_never_below_the_floor(
    history: list[Outcome], clean: int, floor: float, policy: RatePolicy
) -> None:
    record = record_of(history)
    for each in (record, AuditRecord(clean=clean, failed_at=record.failed_at)):
        share, why = share_of(each, floor=floor, policy=policy)
        assert floor <= share <= 1
        assert 0 < len(why) <= 200


@given(history=histories, failure=st.sampled_from([Outcome.REJECTED, Outcome.FORGED]), floor=floors, policy=policies)
def test_after_any_failure_every_row_is_audited_again(
    history: list[Outcome], failure: Outcome, floor: float, policy: RatePolicy
) -> None:
    record = after(record_of(history), failure, at=NOW)
    for _ in range(policy.trial_after_failure):
        assert share_of(record, floor=floor, policy=policy)[0] == 1
        record = after(record, Outcome.ACCEPTED, at=NOW)


@given(floor=floors, policy=policies)
def test_a_clean_nodes_audit_share_falls_to_the_floor(floor: float, policy: RatePolicy) -> None:
    record, last = NEW, 1.0
    for _ in range(policy.trial + 20 * policy.halved_after):
        share, _ = share_of(record, floor=floor, policy=policy)
        assert share <= last
        record, last = after(record, Outcome.ACCEPTED, at=NOW), share
    assert last == floor


def test_the_reason_for_an_audit_share_states_the_nodes_record() -> None:
    policy = RatePolicy(trial=2, halved_after=2, trial_after_failure=4)
    record, said = NEW, []
    for outcome in (Outcome.ACCEPTED,) * 6 + (Outcome.FORGED,):
        record = after(record, outcome, at=NOW)
        said.append(share_of(record, floor=0.2, policy=policy))
    assert said == [
        (1.0, "a new node: 1 of 2 clean verdicts"),
        (0.5, "a node that proves itself: 2 clean verdicts in a row"),
        (0.5, "a node that proves itself: 3 clean verdicts in a row"),
        (0.25, "a node that proves itself: 4 clean verdicts in a row"),
        (0.25, "a node that proves itself: 5 clean verdicts in a row"),
        (0.2, "a proven node: 6 clean verdicts in a row, the pool's floor"),
        (1.0, "failed on 2026-11-21 12:00 UTC: 0 of 4 clean verdicts since"),
    ]


@given(clean=st.integers(0, 300), floor=floors, policy=policies)
def test_a_forgery_by_a_sibling_node_counts_like_the_nodes_own(clean: int, floor: float, policy: RatePolicy) -> None:
    own = share_of(AuditRecord(clean=clean, failed_at=NOW), floor=floor, policy=policy)
    others = share_of(AuditRecord(clean=clean, provider_forged_at=NOW), floor=floor, policy=policy)
    assert own[0] == others[0]
    if clean < policy.trial_after_failure:
        assert others[0] == 1
        assert others[1].startswith("another node of its provider forged work on 2026-11-21 12:00 UTC")
