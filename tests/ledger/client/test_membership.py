"""Nodes through the typed client on a real chain: registration, invites, membership, bans and return."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ledger.amounts import UNIT
from ledger.errors import TransactionReverted
from ledger.events.types import Departure, MemberJoined, MemberLeft
from protocol.identifiers import ZERO_DIGEST, Digest
from protocol.invites import Join, Leave
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.wire.invites import SignedInvite
from protocol.wire.relayed import JoinRequest
from tests.kit.world import POOL, TERMS, World


async def test_a_node_is_registered_updated_retired_and_registered_again(world: World) -> None:
    provider, node = await world.as_("provider"), world.keys["node"].address
    assert await provider.registry.node(node) is None
    await world.register(capacity=3)
    entry = await provider.registry.node(node)
    assert entry is not None
    assert (entry.provider, entry.capacity, entry.retired) == (provider.address, 3, False)
    specs = Digest("0x" + "ab" * 32)
    await provider.registry.update(node=node, specs_hash=specs, capacity=5)
    await provider.registry.retire(node)
    assert await provider.registry.provider_of(node) is None
    await world.register(capacity=5)
    assert await provider.registry.provider_of(node) == provider.address


async def test_a_third_party_can_submit_both_consents_so_that_provider_and_node_need_no_gas(world: World) -> None:
    carrier, provider, node = await world.as_("owner"), world.keys["provider"], world.keys["node"]
    deadline = await carrier.now() + timedelta(minutes=5)
    nonce, until = await carrier.registry.consent_nonce(node.address), int(deadline.timestamp())
    domain = carrier.registry.domain
    node_word = NodeConsent(provider=provider.address, node=node.address, nonce=nonce, deadline=until)
    provider_word = ProviderConsent(
        provider=provider.address,
        node=node.address,
        specs_hash=ZERO_DIGEST,
        capacity=2,
        nonce=nonce,
        deadline=until,
    )
    await carrier.registry.register_for(
        provider=provider.address,
        node=node.address,
        specs_hash=ZERO_DIGEST,
        capacity=2,
        deadline=deadline,
        provider_signature=provider_word.sign(provider, domain),
        node_signature=node_word.sign(node, domain),
    )
    assert await carrier.registry.provider_of(node.address) == provider.address


async def test_a_revoked_consent_is_refused(world: World) -> None:
    node = await world.as_("node")
    before = await node.registry.consent_nonce(node.address)
    await node.registry.revoke_consent()
    assert await node.registry.consent_nonce(node.address) == before + 1


async def test_joining_locks_stake_and_leaving_frees_it(world: World) -> None:
    await world.member()
    provider, node = await world.as_("provider"), world.keys["node"].address
    membership = await provider.pools.membership(POOL, node)
    assert membership is not None
    assert (membership.provider, membership.stake_lock) == (provider.address, 10 * UNIT)
    assert (await provider.stake.of(provider.address)).membership_lock == 10 * UNIT
    await provider.pools.leave(POOL, node)
    assert await provider.pools.membership(POOL, node) is None
    assert (await provider.stake.of(provider.address)).membership_lock == 0
    assert [event.cause for event in await provider.history(MemberLeft, pool_id=POOL)] == [Departure.LEFT]
    assert [event.node for event in await provider.history(MemberJoined, pool_id=POOL)] == [node]


async def test_an_invite_is_valid_once_for_one_node_and_signed_by_the_orchestrator(world: World) -> None:
    await world.member()
    node, other = await world.as_("node"), await world.as_("node-2")
    invite, signature = await world.invite(nonce=1)
    await node.pools.leave(POOL, node.address)
    assert await node.pools.invite_used(POOL, 1)
    with pytest.raises(TransactionReverted, match="redeemed or cancelled before"):
        await node.pools.join(invite, orchestrator_signature=signature)
    stolen, stolen_signature = await world.invite("node", nonce=2)
    with pytest.raises(TransactionReverted, match="the signature is not by"):
        await other.pools.join(stolen, orchestrator_signature=stolen_signature)
    forged, forged_signature = await world.invite(nonce=3, signer="manager")
    with pytest.raises(TransactionReverted, match="not signed by the orchestrator"):
        await node.pools.join(forged, orchestrator_signature=forged_signature)
    cancelled, cancelled_signature = await world.invite(nonce=4)
    await (await world.as_("manager")).pools.cancel_invite(POOL, 4)
    with pytest.raises(TransactionReverted, match="redeemed or cancelled"):
        await node.pools.join(cancelled, orchestrator_signature=cancelled_signature)


async def test_a_node_with_too_little_stake_cannot_join_and_its_invite_stays_valid(world: World) -> None:
    await world.register()
    with pytest.raises(TransactionReverted, match="only 0 MUST is free"):
        await world.join()
    await (await world.as_("provider")).stake.add(10 * UNIT)
    await world.join()


async def test_a_batch_of_joins_reports_refused_items_and_takes_the_others(world: World) -> None:
    await (await world.as_("provider")).stake.add(100 * UNIT)
    await world.register("node")
    carrier, items = await world.as_("orchestrator"), []
    for nonce, name in enumerate(["node", "node-2"], start=1):
        invite, signature = await world.invite(name, nonce=nonce)
        consent = Join(invite_hash=invite.hash).sign(world.keys[name], carrier.pools.domain)
        signed = SignedInvite.of(invite, domain=carrier.pools.domain, signature=signature)
        items.append(JoinRequest(invite=signed, signature="0x" + consent.hex()))
    (refusal,) = await carrier.pools.join_batch(items)
    assert refusal.subject == world.keys["node-2"].address
    assert refusal.reason.startswith("NotRegistered")
    assert await carrier.pools.membership(POOL, world.keys["node"].address) is not None


async def test_a_node_without_gas_leaves_through_a_third_partys_transaction(world: World) -> None:
    await world.member()
    carrier, node = await world.as_("owner"), world.keys["node"]
    deadline = await carrier.now() + timedelta(minutes=5)
    word = Leave(
        pool_id=POOL,
        node=node.address,
        nonce=await carrier.pools.joins(POOL, node.address),
        deadline=int(deadline.timestamp()),
    )
    signature = word.sign(node, carrier.pools.domain)
    await carrier.pools.leave(POOL, node.address, deadline=deadline, node_signature=signature)
    assert await carrier.pools.membership(POOL, node.address) is None


async def test_dead_nodes_are_removed_without_blame_and_can_return(world: World) -> None:
    await world.member()
    orchestrator = await world.as_("orchestrator")
    await orchestrator.pools.remove(POOL, [world.keys["node-2"].address, world.keys["node"].address], "no heartbeat")
    assert await orchestrator.pools.membership(POOL, world.keys["node"].address) is None
    await world.join(nonce=2)


async def test_a_ban_lasts_until_it_is_lifted(world: World) -> None:
    await world.member()
    manager, node = await world.as_("manager"), world.keys["node"].address
    await manager.pools.ban(POOL, node, "no manners")
    assert await manager.pools.is_banned(POOL, node)
    with pytest.raises(TransactionReverted, match="is banned from pool 1"):
        await world.join(nonce=2)
    await manager.pools.unban(POOL, node)
    await world.join(nonce=3)


async def test_a_ban_of_a_provider_covers_all_its_nodes(world: World) -> None:
    await world.member()
    manager, provider = await world.as_("manager"), world.keys["provider"].address
    await manager.pools.ban_provider(POOL, provider, "many names, one cheat")
    assert await manager.pools.is_banned(POOL, world.keys["node"].address, provider)
    longer = await world.submission(lasts=int(TERMS.notice_period.total_seconds()) + 60)
    (refusal,) = await (await world.as_("orchestrator")).work.submit_batch([longer])
    assert refusal.reason.startswith("Banned")
    await world.submitted(index=1)  # its lease was signed earlier and ends within the notice period
    await manager.pools.unban_provider(POOL, provider)
    await world.submitted()


async def test_an_evicted_node_can_be_invited_again(world: World) -> None:
    await world.member()
    manager = await world.as_("manager")
    await manager.pools.evict(POOL, world.keys["node"].address, "slow")
    (left,) = await manager.history(MemberLeft, pool_id=POOL)
    assert (left.cause, left.reason) == (Departure.EVICTED, "slow")
    await world.join(nonce=2)
