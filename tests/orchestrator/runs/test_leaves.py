"""Leaves that nodes send through the relayer: checks, relaying, limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator.loops.relayer import RETRY_PAUSE
from orchestrator.relayer.leaves import MAX_PER_DAY
from protocol.errors import Unavailable
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Leave
from tests.kit.memory_ledger import POOL
from tests.kit.memory_run_ledger import RunUnderTest

MINUTES = timedelta(minutes=10)


def signed_leave(
    run: RunUnderTest,
    key: Key,
    *,
    node: Address | None = None,
    pool_id: int = POOL,
    nonce: int = 1,
    valid: timedelta = MINUTES,
    domain: SigningDomain | None = None,
) -> dict[str, Any]:
    deadline = int((run.pool.clock.now() + valid).timestamp())
    leave = Leave(pool_id=pool_id, node=node or key.address, nonce=nonce, deadline=deadline)
    signature = leave.sign(key, domain or run.pool.ledger.domain)
    return {
        "pool_id": pool_id,
        "node": leave.node,
        "nonce": nonce,
        "deadline": deadline,
        "signature": "0x" + signature.hex(),
    }


async def send_leave(run: RunUnderTest, key: Key, body: dict[str, Any]) -> tuple[str, str]:
    answer = await run.pool.send(key, "/v1/leaves", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["state"], answer.json()["reason"]


async def test_a_node_without_gas_leaves_through_the_relayer_once(run: RunUnderTest) -> None:
    key = await run.member()
    body = signed_leave(run, key)
    assert await send_leave(run, key, body) == ("queued", "")
    assert await send_leave(run, key, signed_leave(run, key, valid=timedelta(hours=1))) == ("queued", "")
    membership = run.chain.memberships[key.address]
    assert await run.relayer.round() == 1
    assert key.address not in run.chain.memberships
    assert await run.relayer.round() == 0
    assert run.chain.batches == [1]
    assert await send_leave(run, key, body) == ("carried", "")
    run.chain.memberships[key.address] = membership  # a reorg removed the transaction
    assert await send_leave(run, key, body) == ("queued", "")
    assert await run.relayer.round() == 1
    assert key.address not in run.chain.memberships
    assert await send_leave(run, key, body) == ("carried", "")


async def test_a_leave_relayed_before_a_crash_or_by_the_node_itself_is_found_on_the_ledger(run: RunUnderTest) -> None:
    key, other = await run.member(), await run.member()
    run.chain.die_after_carrying = True
    await send_leave(run, key, signed_leave(run, key))
    with pytest.raises(Unavailable):
        await run.relayer.round()
    run.chain.die_after_carrying = False
    await send_leave(run, other, signed_leave(run, other))
    del run.chain.memberships[other.address]
    run.chain.add_member(other.address)  # it has left and joined again
    await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    assert await run.relayer.round() == 0
    assert run.chain.batches == [1]
    assert await send_leave(run, key, signed_leave(run, key)) == ("carried", "")
    assert await send_leave(run, other, signed_leave(run, other)) == ("carried", "")


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"node": Key.generate().address}, 403, "foreign-leave"),
        ({"pool_id": POOL + 1}, 403, "foreign-leave"),
        ({"nonce": 2}, 422, "has joined 1 times"),
        ({"valid": timedelta(0)}, 422, "at most one day ahead"),
        ({"valid": timedelta(days=1, seconds=1)}, 422, "at most one day ahead"),
        ({"domain": SigningDomain(1, Key.generate().address)}, 422, "not signed by the node"),
    ],
)
async def test_a_leave_that_the_ledger_would_refuse_is_refused_before_it_costs_gas(
    run: RunUnderTest, change: dict[str, Any], status: int, said: str
) -> None:
    key = await run.member()
    answer = await run.pool.send(key, "/v1/leaves", signed_leave(run, key, **change))
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    await run.relayer.round()
    assert run.chain.batches == []


async def test_a_stranger_causes_neither_a_read_of_the_chain_nor_a_transaction(run: RunUnderTest) -> None:
    await run.member()
    stranger, calls = Key.generate(), run.pool.ledger.calls
    run.chain.down = True
    answer = await run.pool.send(stranger, "/v1/leaves", signed_leave(run, stranger))
    assert (answer.status_code, answer.json()["code"]) == (409, "not-member")
    assert run.pool.ledger.calls == calls


async def test_an_expired_leave_can_be_signed_again_a_few_times_per_day(run: RunUnderTest) -> None:
    key = await run.member()
    for _ in range(MAX_PER_DAY):
        assert await send_leave(run, key, signed_leave(run, key)) == ("queued", "")
        await run.pool.clock.turn(MINUTES + timedelta(seconds=1))
        assert await run.relayer.round() == 0
    limited = await run.pool.send(key, "/v1/leaves", signed_leave(run, key))
    assert (limited.status_code, "leavePool" in limited.json()["hint"]) == (429, True)
    await run.pool.clock.turn(timedelta(days=1))
    run.chain.refuse[key.address] = "Paused"
    assert await send_leave(run, key, signed_leave(run, key)) == ("queued", "")
    await run.relayer.round()
    run.chain.refuse.clear()
    assert await send_leave(run, key, signed_leave(run, key)) == ("queued", "")
    assert await run.relayer.round() == 1
