"""Disputes that nodes send through the relayer: checks, relaying, renewal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator.domain.slots import SlotEvent
from orchestrator.loops.relayer import RETRY_PAUSE
from orchestrator.store.relayer import RelayedKind
from protocol.errors import Unavailable
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.leases import Dispute
from protocol.verdicts import Outcome
from tests.kit.memory_run_ledger import RunUnderTest, sha


async def judged_work(run: RunUnderTest, outcome: Outcome = Outcome.FORGED) -> tuple[Key, Digest]:
    """Returns a node and its work, with a provisional verdict."""
    key = await run.member()
    work = await run.delivered(key, await run.lease(key))
    run.chain.happen(work, key.address, SlotEvent.JUDGED, outcome)
    await run.sync.round()
    return key, work


def signed_dispute(
    run: RunUnderTest, key: Key, work: Digest, *, valid: timedelta = timedelta(minutes=10)
) -> dict[str, Any]:
    """Returns a signed dispute."""
    deadline = int((run.pool.clock.now() + valid).timestamp())
    signature = Dispute(key=work, evidence_hash=sha(5), deadline=deadline).sign(key, run.chain.domain)
    return {"key": work, "evidence_hash": sha(5), "deadline": deadline, "signature": "0x" + signature.hex()}


async def send_dispute(run: RunUnderTest, key: Key, body: dict[str, Any]) -> tuple[str, str]:
    answer = await run.pool.send(key, "/v1/disputes", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["state"], answer.json()["reason"]


async def test_a_dispute_sent_repeatedly_is_relayed_once(run: RunUnderTest) -> None:
    key, work = await judged_work(run)
    run.chain.batches.clear()
    body = signed_dispute(run, key, work)
    assert await send_dispute(run, key, body) == ("queued", "")
    assert await send_dispute(run, key, signed_dispute(run, key, work, valid=timedelta(hours=1))) == ("queued", "")
    assert await run.relayer.round() == 1
    assert await run.relayer.round() == 0
    assert run.chain.batches == [1]
    assert await send_dispute(run, key, body) == ("carried", "")
    await run.sync.round()
    assert await send_dispute(run, key, body) == ("carried", "")
    assert (await run.rollouts(status="all"))[0]["status"] == "disputed"


async def test_a_dispute_relayed_before_a_crash_is_found_on_the_ledger(run: RunUnderTest) -> None:
    key, work = await judged_work(run)
    run.chain.batches.clear()
    await send_dispute(run, key, signed_dispute(run, key, work))
    run.chain.die_after_carrying = True
    with pytest.raises(Unavailable):
        await run.relayer.round()
    await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    await run.relayer.round()
    assert run.chain.batches == [1]
    assert await send_dispute(run, key, signed_dispute(run, key, work)) == ("carried", "")


async def test_a_dispute_signature_that_expired_during_an_outage_can_be_renewed(run: RunUnderTest) -> None:
    key, work = await judged_work(run)
    await send_dispute(run, key, signed_dispute(run, key, work))
    run.chain.down = True
    with pytest.raises(Unavailable):
        await run.relayer.round()
    await run.pool.clock.turn(timedelta(minutes=11))
    run.chain.down = False
    assert await run.relayer.round() == 0
    assert await send_dispute(run, key, signed_dispute(run, key, work)) == ("queued", "")
    assert await run.relayer.round() == 1


async def test_a_refusal_by_the_ledger_is_recorded_with_its_reason(run: RunUnderTest) -> None:
    key, work = await judged_work(run)
    run.chain.refuse[work] = "TooLate"
    await send_dispute(run, key, signed_dispute(run, key, work))
    assert await run.relayer.round() == 0
    row = await run.pool.dependencies.relayer.store.get(RelayedKind.DISPUTE, work)
    assert row is not None
    assert (row.state.value, row.reason) == ("refused", "TooLate(…)")


@pytest.mark.parametrize("valid", [timedelta(seconds=-1), timedelta(0), timedelta(days=2)])
async def test_a_dispute_signature_is_valid_for_a_day_at_most(run: RunUnderTest, valid: timedelta) -> None:
    key, work = await judged_work(run)
    assert (await run.pool.send(key, "/v1/disputes", signed_dispute(run, key, work, valid=valid))).status_code == 422


async def test_a_dispute_for_another_node_or_of_final_work_is_refused(run: RunUnderTest) -> None:
    key, work = await judged_work(run)
    other = await run.member()
    assert (await run.pool.send(other, "/v1/disputes", signed_dispute(run, other, work))).status_code == 404
    assert (await run.pool.send(key, "/v1/disputes", signed_dispute(run, other, work))).status_code == 422
    assert (await run.pool.send(key, "/v1/disputes", signed_dispute(run, key, sha(99)))).status_code == 404
    run.chain.happen(work, key.address, SlotEvent.FINAL, Outcome.FORGED)
    await run.sync.round()
    answer = await run.pool.send(key, "/v1/disputes", signed_dispute(run, key, work))
    assert (answer.status_code, answer.json()["code"]) == (409, "not-disputable")
    assert await run.relayer.round() == 0


async def test_an_acceptance_cannot_be_disputed_at_the_pools_cost(run: RunUnderTest) -> None:
    key, work = await judged_work(run, Outcome.ACCEPTED)
    answer = await run.pool.send(key, "/v1/disputes", signed_dispute(run, key, work))
    assert (answer.status_code, answer.json()["code"]) == (409, "nothing-to-dispute")
