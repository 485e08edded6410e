"""Membership: an invite is used once, every member can leave, and every removed node can return."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from tests.kit.contract_client import ZERO, error_name, malleable
from tests.kit.contract_world import (
    BANNED,
    DIGEST,
    EVICTED,
    FAR,
    LEFT,
    POOLS,
    REGISTRY,
    REMOVED,
    TERMS,
    WORK,
    World,
)


def test_anyone_can_submit_a_nodes_invite_and_the_node_joins(world: World) -> None:
    world.register("provider", "node2", capacity=4)
    receipt = world.join("node2")
    assert receipt.only("MemberJoined")["provider"] == world.provider.address
    member = world.membership("node2")
    assert (member.provider, member.stakeLock, member.joins) == (world.provider.address, 4_000, 1)
    assert (member.joinedBlock, member.joinedAt) == (receipt.block, world.chain.now())
    assert world.chain.call(POOLS, "memberCount", world.pool) == 2
    assert world.stake().membershipLock == 14_000


def test_a_node_that_calls_itself_needs_no_signature(world: World) -> None:
    world.leave("node")
    invite = world.invite("node")
    world.chain.send(POOLS, "join", invite, world.sign_invite(invite), b"", sender=world.node)
    assert world.membership("node").joins == 2


@pytest.mark.parametrize(
    ("flaw", "error"),
    [
        ("signed by the owner", "BadInvite"),
        ("signed for another domain", "BadInvite"),
        ("with another URL", "BadInvite"),
        ("without signature", "BadInvite"),
        ("signed in another form", "BadInvite"),
        ("carried without the node", "NodeNotWilling"),
        ("with another node's consent", "NodeNotWilling"),
        ("with consent to another invite", "NodeNotWilling"),
        ("expired", "SignatureExpired"),
        ("for a pool that does not exist", "WrongStatus"),
        ("with a long URL", "TextTooLong"),
    ],
)
def test_joining_with_an_invalid_invite_is_refused(world: World, flaw: str, error: str) -> None:
    world.leave("node")
    flaws: dict[str, dict[str, Any]] = {
        "expired": {"expiry": world.chain.now() - 1},
        "for a pool that does not exist": {"poolId": 99},
        "with a long URL": {"url": "u" * 513},
    }
    invite = world.invite("node", **flaws.get(flaw, {}))
    by = "owner" if flaw == "signed by the owner" else "orchestrator"
    invited = world.sign_invite(invite, by=by, domain=2 if flaw == "signed for another domain" else None)
    joined = world.sign_join(invite, by="node")
    if flaw == "with another URL":
        invite = invite | {"url": "http://elsewhere"}
    elif flaw == "without signature":
        invited = b""
    elif flaw == "signed in another form":
        invited = malleable(invited)
    elif flaw == "carried without the node":
        joined = b""
    elif flaw == "with another node's consent":
        joined = world.sign_join(invite, by="node2")
    elif flaw == "with consent to another invite":
        joined = world.sign_join(world.invite("node"), by="node")
    assert world.chain.refusal(POOLS, "join", invite, invited, joined, sender=world.stranger) == error


def test_an_invite_is_used_once(world: World) -> None:
    world.leave("node")
    item = world.joining("node")
    world.chain.send(POOLS, "join", *item.values(), sender=world.stranger)
    world.leave("node")
    assert world.chain.refusal(POOLS, "join", *item.values()) == "InviteUsed"


def test_a_cancelled_invite_is_refused(world: World) -> None:
    world.leave("node")
    for name in ("owner", "manager", "orchestrator"):
        item = world.joining("node")
        nonce = item["invite"]["nonce"]
        assert world.chain.refusal(POOLS, "cancelInvite", world.pool, nonce, sender=world.stranger) == "NotOperator"
        world.chain.send(POOLS, "cancelInvite", world.pool, nonce, sender=world.people[name])
        assert world.chain.refusal(POOLS, "join", *item.values()) == "InviteUsed"
        assert world.chain.refusal(POOLS, "cancelInvite", world.pool, nonce, sender=world.owner) == "InviteUsed"


def test_an_invite_of_a_replaced_orchestrator_is_valid_until_the_grace_period_ends(world: World) -> None:
    world.leave("node")
    item = world.joining("node")
    until = world.chain.now() + 100
    world.chain.send(POOLS, "setOrchestrator", world.pool, world.node2.address, until, sender=world.owner)
    with world.chain.restored():
        world.chain.send(POOLS, "join", *item.values(), sender=world.stranger)
    world.chain.warp(100)
    assert world.chain.refusal(POOLS, "join", *item.values()) == "BadInvite"


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("member already", "MemberAlready"),
        ("not registered", "NotRegistered"),
        ("too small", "CapacityTooLow"),
        ("full", "PoolFull"),
        ("stake too low", "StakeTooLow"),
        ("ended", "WrongStatus"),
    ],
)
def test_joining_without_the_requirements_is_refused(world: World, case: str, error: str) -> None:
    if case == "member already":
        assert world.chain.refusal(POOLS, "join", *world.joining("node").values()) == error
        return
    if case != "not registered":
        provider = "provider2" if case == "stake too low" else "provider"
        world.register(provider, "node2", capacity=1 if case == "too small" else 10)
    if case == "full":
        world.chain.send(POOLS, "setTerms", world.pool, TERMS | {"maxNodes": 1}, sender=world.owner)
        world.chain.warp(TERMS["noticePeriod"])
    if case == "ended":
        world.chain.send(POOLS, "end", world.pool, sender=world.owner)
    assert world.chain.refusal(POOLS, "join", *world.joining("node2").values()) == error


def test_one_refused_invite_does_not_stop_a_batch(world: World) -> None:
    world.register("provider", "node2")
    bad = world.joining("node")
    good = world.joining("node2")
    receipt = world.chain.send(POOLS, "joinBatch", [bad, good], sender=world.stranger)
    refused = receipt.only("JoinRefused")
    assert (refused["node"], error_name(refused["reason"])) == (world.node.address, "MemberAlready")
    assert receipt.only("MemberJoined")["node"] == world.node2.address


def test_the_size_of_a_batch_is_limited(world: World) -> None:
    item = world.joining("node")
    assert world.chain.refusal(POOLS, "joinBatch", [item] * 257) == "BatchTooLong"
    nodes = [world.node.address] * 257
    assert world.chain.refusal(POOLS, "remove", world.pool, nodes, "", sender=world.manager) == "BatchTooLong"


@pytest.mark.parametrize("who", ["node", "provider"])
def test_node_and_provider_can_leave_at_any_time_and_the_stake_is_freed(world: World, who: str) -> None:
    leaving = (world.pool, world.node.address, 0, b"")
    receipt = world.chain.send(POOLS, "leavePool", *leaving, sender=world.people[who])
    assert receipt.only("MemberLeft")["cause"] == LEFT
    assert world.membership("node") == {
        "provider": ZERO,
        "joinedAt": ANY,
        "joinedBlock": ANY,
        "stakeLock": 0,
        "joins": 1,
        "heldUntil": world.chain.now() + TERMS["noticePeriod"],
    }
    assert world.chain.call(POOLS, "memberCount", world.pool) == 0
    assert world.stake().membershipLock == 0
    assert world.chain.refusal(POOLS, "leavePool", *leaving, sender=world.people[who]) == "NotMember"


def test_anyone_can_submit_a_signed_leave_for_one_membership(world: World) -> None:
    node = world.node.address
    signature = world.sign_leave("node", nonce=1)
    late = (world.pool, node, 1, world.sign_leave("node", nonce=1, deadline=1))
    assert world.chain.refusal(POOLS, "leavePool", *late) == "SignatureExpired"
    assert world.chain.refusal(POOLS, "leavePool", world.pool, node, FAR, b"") == "NotNodeNorProvider"
    wrong = (world.pool, node, FAR, world.sign_leave("node", nonce=2))
    assert world.chain.refusal(POOLS, "leavePool", *wrong) == "NotNodeNorProvider"
    world.chain.send(POOLS, "leavePool", world.pool, node, FAR, signature, sender=world.stranger)
    world.join("node")
    assert world.chain.refusal(POOLS, "leavePool", world.pool, node, FAR, signature) == "NotNodeNorProvider"


def test_leaving_an_ended_pool_unlocks_the_stake(world: World) -> None:
    world.chain.send(POOLS, "end", world.pool, sender=world.owner)
    world.leave("node")
    assert world.stake().membershipLock == 0


def test_leaving_unlocks_the_amount_that_joining_locked_despite_later_changes(world: World) -> None:
    world.chain.send(REGISTRY, "updateNode", world.node.address, DIGEST, 50, sender=world.provider)
    world.chain.send(POOLS, "setTerms", world.pool, TERMS | {"stakePerCapacity": 5}, sender=world.owner)
    world.chain.warp(TERMS["noticePeriod"])
    world.leave("node")
    assert world.stake().membershipLock == 0
    world.join("node")
    assert world.stake().membershipLock == 250


@pytest.mark.parametrize("who", ["orchestrator", "manager"])
def test_dead_nodes_are_removed_without_blame_and_invited_again(world: World, who: str) -> None:
    nodes = [world.node2.address, world.node.address, world.node.address]
    receipt = world.chain.send(POOLS, "remove", world.pool, nodes, "silent", sender=world.people[who])
    left = receipt.only("MemberLeft")
    assert (left["node"], left["cause"], left["reason"]) == (world.node.address, REMOVED, "silent")
    assert world.stake().membershipLock == 0
    world.join("node")


def test_only_orchestrator_and_manager_remove_dead_nodes(world: World) -> None:
    for name in ("owner", "stranger", "validator"):
        arguments = (world.pool, [world.node.address], "")
        assert world.chain.refusal(POOLS, "remove", *arguments, sender=world.people[name]) == "NotOperator"
    long = (world.pool, [world.node.address], "r" * 513)
    assert world.chain.refusal(POOLS, "remove", *long, sender=world.manager) == "TextTooLong"


def test_an_evicted_node_can_be_invited_again(world: World) -> None:
    receipt = world.chain.send(POOLS, "evict", world.pool, world.node.address, "slow", sender=world.manager)
    assert receipt.only("MemberLeft")["cause"] == EVICTED
    again = (world.pool, world.node.address, "slow")
    assert world.chain.refusal(POOLS, "evict", *again, sender=world.manager) == "NotMember"
    world.join("node")


def test_a_ban_removes_a_node_and_blocks_it_until_lifted(world: World) -> None:
    receipt = world.chain.send(POOLS, "ban", world.pool, world.node.address, "forger", sender=world.manager)
    assert receipt.only("MemberLeft")["cause"] == BANNED
    assert receipt.only("NodeBanned")["reason"] == "forger"
    assert world.chain.call(POOLS, "nodeBanned", world.pool, world.node.address)
    assert world.chain.refusal(POOLS, "join", *world.joining("node").values()) == "Banned"
    again = (world.pool, world.node.address, "forger")
    assert world.chain.refusal(POOLS, "ban", *again, sender=world.manager) == "BanUnchanged"
    world.chain.send(POOLS, "unban", world.pool, world.node.address, sender=world.manager)
    assert world.chain.refusal(POOLS, "unban", world.pool, world.node.address, sender=world.manager) == "BanUnchanged"
    world.join("node")


def test_a_node_can_be_banned_before_it_has_joined(world: World) -> None:
    world.register("provider", "node2")
    receipt = world.chain.send(POOLS, "ban", world.pool, world.node2.address, "", sender=world.manager)
    assert receipt.names() == ["NodeBanned"]
    assert world.chain.refusal(POOLS, "join", *world.joining("node2").values()) == "Banned"


def test_nodes_of_a_banned_provider_cannot_join_or_submit_but_can_leave(world: World) -> None:
    provider = world.provider.address
    world.register("provider", "node2")
    world.chain.send(POOLS, "banProvider", world.pool, provider, "farm", sender=world.manager)
    assert world.chain.call(POOLS, "providerBanned", world.pool, provider)
    assert world.chain.refusal(POOLS, "join", *world.joining("node2").values()) == "Banned"
    assert world.chain.refusal(WORK, "submitWork", *world.submission(world.lease()).values()) == "Banned"
    again = (world.pool, provider, "farm")
    assert world.chain.refusal(POOLS, "banProvider", *again, sender=world.manager) == "BanUnchanged"
    with world.chain.restored():
        world.leave("node")
    world.chain.send(POOLS, "unbanProvider", world.pool, provider, sender=world.manager)
    assert world.chain.refusal(POOLS, "unbanProvider", world.pool, provider, sender=world.manager) == "BanUnchanged"
    world.join("node2")
    world.submit()


@pytest.mark.parametrize("function", ["ban", "unban", "banProvider", "unbanProvider", "evict"])
def test_only_the_manager_bans_and_evicts(world: World, function: str) -> None:
    arguments = [world.pool, world.node.address] + ([] if function.startswith("un") else [""])
    for name in ("owner", "orchestrator", "stranger", "governor"):
        assert world.chain.refusal(POOLS, function, *arguments, sender=world.people[name]) == "NotManager"
    if not function.startswith("un"):
        arguments[-1] = "r" * 513
        assert world.chain.refusal(POOLS, function, *arguments, sender=world.manager) == "TextTooLong"
