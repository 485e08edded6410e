"""Leases, and work under them, of nodes that left the pool, were evicted or banned."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from ledger.events.types import ProviderBanned
from orchestrator.domain.slots import SlotEvent
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from protocol.wire.slots import SlotGrant
from tests.kit.memory_ledger import PROVIDER
from tests.kit.memory_run_ledger import RunUnderTest, sha


async def ticket(run: RunUnderTest, key: Key, grant: SlotGrant, *, file: int = 1) -> httpx.Response:
    slot = {"step": grant.lease.step, "index": grant.lease.index}
    return await run.pool.send(key, "/v1/uploads", {"kind": "rollout", "sha256": sha(file), "size": 9, "slot": slot})


async def end_membership(
    run: RunUnderTest, key: Key, grant: SlotGrant, *, expelled: bool = True, forged: bool = False
) -> None:
    """Ends a node's membership on both test ledgers (run and pool), and reads the events."""
    run.chain.remove_member(key.address, held_until=0 if forged else grant.lease.expiry, expelled=expelled)
    status = run.pool.ledger.nodes[key.address]
    run.pool.ledger.nodes[key.address] = replace(status, member=False, banned=expelled)
    run.pool.dependencies.status_cache.forget(key.address)
    await run.pool.dependencies.nodes.learn(key.address, {"member": "0"})
    await run.sync.round()


async def delivery_record(run: RunUnderTest, key: Key) -> Any:
    return await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases")


async def end_leases(run: RunUnderTest) -> None:
    """Advances the clock past a lease and its grace period."""
    await run.pool.clock.turn(timedelta(seconds=111))
    await run.sync.round()


async def test_a_node_evicted_during_its_work_can_upload_submit_and_is_paid(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await end_membership(run, key, grant)
    assert (await ticket(run, key, grant)).status_code == 200
    work = await run.delivered(key, grant)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    assert (await run.view())["accepted"] == 4
    told = await delivery_record(run, key)
    assert (told["delivered"], told["undelivered"]) == (1, 0)
    assert (await run.ask(key)).status_code == 403, "but it leases nothing more"


async def test_no_step_waits_for_a_departed_node(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key, groups=8)
    await end_membership(run, key, grant, expelled=False)
    view = await run.view()
    assert (view["leased"], view["spare"], view["need"]) == (8, 8, 8)


async def test_an_eviction_for_forged_work_ends_the_nodes_leases_at_once(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await end_membership(run, key, grant, forged=True)
    refused = await ticket(run, key, grant)
    assert (refused.status_code, refused.json()["code"]) == (409, "no-lease")
    told = await delivery_record(run, key)
    assert [each["state"] for each in told["leases"]] == ["undelivered"]


async def test_a_forgery_verdict_after_departure_ends_the_nodes_other_leases(run: RunUnderTest) -> None:
    key = await run.member()
    first, second = await run.lease(key, groups=1), await run.lease(key, groups=1)
    work = await run.delivered(key, first)
    await end_membership(run, key, second, expelled=False)
    assert (await ticket(run, key, second, file=2)).status_code == 200
    run.chain.held[key.address] = 0  # no further event reports that
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.FORGED)
    run.chain.happen(work, key.address, SlotEvent.FINAL, Outcome.FORGED)
    await run.sync.round()
    assert (await ticket(run, key, second, file=3)).json()["code"] == "no-lease"


async def test_a_final_forgery_verdict_ends_no_leases_of_a_current_member(run: RunUnderTest) -> None:
    key = await run.member()
    first, second = await run.lease(key, groups=1), await run.lease(key, groups=1)
    work = await run.delivered(key, first)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.FORGED)
    run.chain.happen(work, key.address, SlotEvent.FINAL, Outcome.FORGED)
    await run.sync.round()
    assert (await ticket(run, key, second, file=2)).status_code == 200, "as if it had joined again"


@pytest.mark.parametrize(("expelled", "state", "undelivered"), [(True, "lapsed", 0), (False, "undelivered", 1)])
async def test_undelivered_slots_are_excused_if_the_pool_evicted_the_node(
    run: RunUnderTest, state: str, undelivered: int, *, expelled: bool
) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await end_membership(run, key, grant, expelled=expelled)
    await end_leases(run)
    told = await delivery_record(run, key)
    assert ([each["state"] for each in told["leases"]], told["undelivered"]) == ([state], undelivered)


async def test_an_evicted_node_can_release_its_slots(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await end_membership(run, key, grant)
    answer = await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": grant.lease.index}]})
    assert (answer.json()["leases"][0]["state"], answer.json()["undelivered"]) == ("lapsed", 0)


async def test_a_ledger_refusal_does_not_count_against_an_evicted_node(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await end_membership(run, key, grant)
    run.chain.refuse[grant.lease.lease.key.hash] = "NotMember"
    assert (await run.hand_in(key, run.signed(key, grant))).status_code == 200
    await run.relayer.round()
    await end_leases(run)
    assert (await delivery_record(run, key))["undelivered"] == 0


async def test_a_ban_of_a_provider_suspends_the_leases_of_its_nodes(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key, groups=8)
    run.chain.emit(ProviderBanned, provider=PROVIDER.address, reason="")
    await run.sync.round()
    assert (await run.view())["need"] == 8
    assert (await ticket(run, key, grant)).status_code == 200
    await end_leases(run)
    assert (await delivery_record(run, key))["undelivered"] == 0


async def test_a_non_member_without_a_lease_cannot_upload(run: RunUnderTest) -> None:
    key, stranger = await run.member(), Key.generate()
    refused = await ticket(run, stranger, await run.lease(key))
    assert (refused.status_code, refused.json()["code"]) == (403, "not-a-member")


async def test_a_reorg_restores_a_lease_that_no_step_waits_for(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key, groups=8)
    work = await run.delivered(key, grant)
    await run.pool.clock.turn(timedelta(seconds=60))
    run.chain.take_back(work)
    await run.sync.round()
    assert (await run.view())["spare"] == 8
