"""Events of the pool that the ledger's events cause: verdicts, disputes, slashes and payouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledger.amounts import UNIT
from ledger.events.types import DisputeLost, RewardsClaimed, WorkFinal
from orchestrator.domain.event_kinds import wants
from orchestrator.domain.slots import SlotEvent
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from tests.kit.memory_ledger import PROVIDER
from tests.kit.memory_run_ledger import VALIDATOR, RunUnderTest

PREFIXES = ("verdict.", "dispute.", "slash.", "payout.")


async def announced(run: RunUnderTest) -> list[dict[str, Any]]:
    """Reads the ledger's events; returns those of the pool that a webhook with these prefixes gets."""
    await run.sync.round()
    events = (await run.pool.owner("GET", "/v1/events?limit=500"))["events"]
    return [event for event in events if wants(PREFIXES, event["kind"])]


async def kinds(run: RunUnderTest) -> list[str]:
    return [event["kind"] for event in await announced(run)]


async def work_of(run: RunUnderTest) -> tuple[Key, Digest]:
    key = await run.member()
    work = await run.delivered(key, await run.lease(key))
    return key, work


async def test_a_dispute_is_told_from_the_verdict_to_the_slash(run: RunUnderTest) -> None:
    key, work = await work_of(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.FORGED)
    run.chain.happen(work, key.address, SlotEvent.DISPUTED)
    run.chain.happen(work, key.address, SlotEvent.DECIDED, Outcome.FORGED)
    run.chain.head += 1
    run.chain.emit(DisputeLost, key=work, node=key.address, taken=UNIT // 2)
    run.chain.head += 1
    run.chain.emit(WorkFinal, key=work, node=key.address, outcome=Outcome.FORGED, paid=0, slashed=5 * UNIT)
    events = await announced(run)
    assert [event["kind"] for event in events] == [
        "verdict.forged",
        "dispute.opened",
        "verdict.forged",
        "dispute.decided",
        "dispute.lost",
        "slash.dispute",
        "slash.forgery",
    ]
    assert {event["node"] for event in events} == {key.address}
    assert all(work in event["detail"] for event in events)
    assert [event["actor"] for event in events[:3]] == [VALIDATOR.address, key.address, VALIDATOR.address]
    assert (events[-2]["detail"].split(":")[0], events[-1]["detail"].split(":")[0]) == ("0.5 MUST", "5 MUST")


async def test_payouts_and_missed_verdicts_are_told(run: RunUnderTest) -> None:
    key, work = await work_of(run)
    run.chain.head += 1
    run.chain.emit(WorkFinal, key=work, node=key.address, outcome=Outcome.ACCEPTED, paid=3 * UNIT, slashed=0)
    run.chain.head += 1
    run.chain.emit(RewardsClaimed, provider=PROVIDER.address, to=key.address, amount=2 * UNIT)
    run.chain.head += 1
    run.chain.emit(WorkFinal, key=work, node=key.address, outcome=Outcome.REJECTED, paid=0, slashed=0)  # no money moves
    other, late = await work_of(run)
    run.chain.happen(late, other.address, SlotEvent.EXPIRED)
    earned, claimed, missed = await announced(run)
    assert (earned["kind"], earned["detail"]) == ("payout.earned", f"3 MUST for work {work}")
    assert (claimed["kind"], claimed["actor"], claimed["node"]) == ("payout.claimed", PROVIDER.address, None)
    assert claimed["detail"] == f"2 MUST to {key.address}"
    assert (missed["kind"], missed["node"]) == ("verdict.expired", other.address)


async def test_an_event_that_is_read_again_is_told_once(run: RunUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.runs.MOST_ANNOUNCED", 2)
    key, work = await work_of(run)
    for what in (SlotEvent.JUDGED, SlotEvent.DISPUTED, SlotEvent.DECIDED):
        run.chain.happen(work, key.address, what, Outcome.ACCEPTED)
    told = await kinds(run)
    assert told == ["verdict.accepted", "dispute.opened", "verdict.accepted", "dispute.decided"]
    for position in (0, len(run.chain.happened) - 2):  # the position was lost; a crash before the commit
        run.chain.read = position
        assert await kinds(run) == told


async def test_an_event_that_a_reorg_removes_is_revoked_and_told_again_in_its_new_block(run: RunUnderTest) -> None:
    key, work = await work_of(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.REJECTED)
    assert await kinds(run) == ["verdict.rejected"]
    run.chain.happened.append(replace(run.chain.happened[-1], reverted=True))
    assert await kinds(run) == ["verdict.rejected", "verdict.reverted"]
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.REJECTED)
    assert await kinds(run) == ["verdict.rejected", "verdict.reverted", "verdict.rejected"]


async def test_history_is_not_told_and_an_instance_without_the_lease_tells_nothing(run: RunUnderTest) -> None:
    key, work = await work_of(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    assert await kinds(run) == ["verdict.accepted"]
    await run.pool.dependencies.redis.flushall()  # a loss of Redis: the ledger is read from its first block
    run.chain.read = 0
    assert await kinds(run) == []
    run.chain.head += 1
    run.chain.emit(RewardsClaimed, provider=PROVIDER.address, to=key.address, amount=UNIT)
    late = run.chain.happened[-1]
    assert not await run.leasing.store.announce(late, day=1, quiet=False, now_ms=1, lease="of another instance")
    assert await kinds(run) == ["payout.claimed"]
