"""Nodes and their providers: both sign, no signature can be replayed, and a node has one provider."""

from __future__ import annotations

import pytest

from tests.kit.contract_client import ZERO
from tests.kit.contract_world import DIGEST, FAR, MUSTER, ONE, POOLS, REGISTRY, SHA256, WORK, World


def test_a_provider_registers_a_node_that_has_signed_its_consent(world: World) -> None:
    receipt = world.register("provider", "node2", capacity=4)
    assert receipt.only("NodeRegistered")["capacity"] == 4
    node = world.chain.call(REGISTRY, "nodeOf", world.node2.address)
    assert (node.provider, node.capacity, node.retired, node.specsHash) == (world.provider.address, 4, False, DIGEST)
    assert world.chain.call(REGISTRY, "providerOf", world.node2.address) == world.provider.address
    assert world.chain.call(REGISTRY, "payeeOf", world.node2.address) == world.provider.address
    assert world.chain.call(REGISTRY, "nodeCountOf", world.provider.address) == 2
    assert world.chain.call(REGISTRY, "consentNonce", world.node2.address) == 1


@pytest.mark.parametrize(
    ("flaw", "error"),
    [
        ("signed by another key", "BadConsent"),
        ("signed for another provider", "BadConsent"),
        ("of another nonce", "BadConsent"),
        ("not a signature", "BadConsent"),
        ("too old", "ConsentExpired"),
        ("without capacity", "NoCapacity"),
    ],
)
def test_registration_with_an_invalid_consent_is_refused(world: World, flaw: str, error: str) -> None:
    deadline = world.chain.now() - 1 if flaw == "too old" else FAR
    consent = {
        "signed by another key": lambda: world.node_consent(world.provider.address, world.stranger),
        "signed for another provider": lambda: world.node_consent(world.provider2.address, world.node2),
        "of another nonce": lambda: world.node_consent(world.provider.address, world.node2, nonce=1),
        "not a signature": lambda: b"\x01" * 65,
    }.get(flaw, lambda: world.node_consent(world.provider.address, world.node2, deadline=deadline))()
    capacity = 0 if flaw == "without capacity" else 4
    arguments = (world.node2.address, DIGEST, capacity, deadline, consent)
    assert world.chain.refusal(REGISTRY, "registerNode", *arguments, sender=world.provider) == error


def test_a_provider_cannot_register_itself_as_a_node(world: World) -> None:
    consent = world.node_consent(world.provider.address, world.provider)
    arguments = (world.provider.address, DIGEST, 4, FAR, consent)
    assert world.chain.refusal(REGISTRY, "registerNode", *arguments, sender=world.provider) == "KeysNotApart"


def test_anyone_can_submit_the_signed_consents_of_provider_and_node(world: World) -> None:
    arguments = (world.provider.address, world.node2.address, DIGEST, 10, FAR)
    signed = world.provider_consent(world.provider, world.node2.address)
    consent = world.node_consent(world.provider.address, world.node2)
    world.chain.send(REGISTRY, "registerNodeFor", *arguments, signed, consent, sender=world.stranger)
    assert world.chain.call(REGISTRY, "providerOf", world.node2.address) == world.provider.address


def test_a_registration_that_differs_from_the_providers_signature_is_refused(world: World) -> None:
    signed = world.provider_consent(world.provider, world.node2.address)
    consent = world.node_consent(world.provider.address, world.node2)
    altered = (world.provider.address, world.node2.address, DIGEST, 11, FAR)
    assert world.chain.refusal(REGISTRY, "registerNodeFor", *altered, signed, consent) == "BadConsent"
    other = world.provider_consent(world.provider2, world.node2.address)
    arguments = (world.provider.address, world.node2.address, DIGEST, 10, FAR)
    assert world.chain.refusal(REGISTRY, "registerNodeFor", *arguments, other, consent) == "BadConsent"
    assert world.chain.refusal(REGISTRY, "registerNodeFor", *arguments, signed, b"") == "BadConsent"


def test_a_contract_wallet_without_erc1271_cannot_be_a_provider(world: World) -> None:
    wallet = world.chain.address(MUSTER)
    consent = world.node_consent(wallet, world.node2)
    arguments = (wallet, world.node2.address, DIGEST, 10, FAR, b"\x01" * 65, consent)
    assert world.chain.refusal(REGISTRY, "registerNodeFor", *arguments) == "BadConsent"


def test_a_registered_node_belongs_to_one_provider(world: World) -> None:
    consent = world.node_consent(world.provider2.address, world.node, nonce=1)
    arguments = (world.node.address, DIGEST, 10, FAR, consent)
    assert world.chain.refusal(REGISTRY, "registerNode", *arguments, sender=world.provider2) == "NodeTaken"


def test_a_provider_updates_the_description_of_its_node(world: World) -> None:
    world.chain.send(REGISTRY, "updateNode", world.node.address, SHA256, 20, sender=world.provider)
    node = world.chain.call(REGISTRY, "nodeOf", world.node.address)
    assert (node.capacity, node.specsHash) == (20, SHA256)


def test_only_its_provider_updates_or_retires_a_node(world: World) -> None:
    update = (world.node.address, SHA256, 20)
    assert world.chain.refusal(REGISTRY, "updateNode", *update, sender=world.stranger) == "NotProvider"
    assert world.chain.refusal(REGISTRY, "updateNode", *update, sender=world.node) == "NotProvider"
    empty = (world.node.address, SHA256, 0)
    assert world.chain.refusal(REGISTRY, "updateNode", *empty, sender=world.provider) == "NoCapacity"
    assert world.chain.refusal(REGISTRY, "retireNode", world.node.address, sender=world.stranger) == "NotProvider"


def test_a_retired_node_cannot_work_or_join_but_is_still_paid_for_earlier_work(world: World) -> None:
    world.chain.send(REGISTRY, "retireNode", world.node.address, sender=world.provider)
    assert world.chain.call(REGISTRY, "providerOf", world.node.address) == ZERO
    assert world.chain.call(REGISTRY, "payeeOf", world.node.address) == world.provider.address
    assert world.chain.call(REGISTRY, "nodeCountOf", world.provider.address) == 0
    assert world.chain.refusal(WORK, "submitWork", *world.submission(world.lease()).values()) == "NotRegistered"
    world.chain.send(POOLS, "leavePool", world.pool, world.node.address, 0, b"", sender=world.node)
    assert world.chain.refusal(POOLS, "join", *world.joining("node").values()) == "NotRegistered"
    assert world.chain.refusal(REGISTRY, "retireNode", world.node.address, sender=world.provider) == "NotProvider"


def test_a_retired_node_returns_to_its_provider_only_with_a_new_consent(world: World) -> None:
    first = world.node_consent(world.provider.address, world.node)
    world.chain.send(REGISTRY, "retireNode", world.node.address, sender=world.provider)
    replay = (world.node.address, DIGEST, 10, FAR, first)
    assert world.chain.refusal(REGISTRY, "registerNode", *replay, sender=world.provider) == "BadConsent"
    foreign = (world.node.address, DIGEST, 10, FAR, world.node_consent(world.provider2.address, world.node, nonce=1))
    assert world.chain.refusal(REGISTRY, "registerNode", *foreign, sender=world.provider2) == "NodeTaken"
    world.register("provider", "node", nonce=1)
    assert world.chain.call(REGISTRY, "providerOf", world.node.address) == world.provider.address
    assert world.chain.call(REGISTRY, "nodeCountOf", world.provider.address) == 1


def test_a_node_can_revoke_an_unused_consent(world: World) -> None:
    world.chain.transfer(world.node2.address, ONE)
    consent = world.node_consent(world.provider.address, world.node2)
    world.chain.send(REGISTRY, "revokeConsent", sender=world.node2)
    arguments = (world.node2.address, DIGEST, 4, FAR, consent)
    assert world.chain.refusal(REGISTRY, "registerNode", *arguments, sender=world.provider) == "BadConsent"
