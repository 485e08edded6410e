"""Domains: opened, described and closed only by the governor."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.contract_client import ZERO
from tests.kit.contract_world import DIGEST, DOMAINS, POOLS, SHA256, TERMS, World


def test_the_governor_creates_and_updates_domains(world: World) -> None:
    domain = world.create_domain()
    assert domain == world.domain + 1 == world.chain.call(DOMAINS, "domainCount")
    assert world.chain.call(DOMAINS, "isActive", domain)
    changed = (domain, "code", "ipfs://more", SHA256, world.reserve.address)
    world.chain.send(DOMAINS, "updateDomain", *changed, sender=world.governor)
    assert world.chain.call(DOMAINS, "domainOf", domain) == {
        "reserve": world.reserve.address,
        "active": True,
        "validationHash": SHA256,
        "name": "code",
        "uri": "ipfs://more",
    }
    assert world.chain.call(DOMAINS, "reserveOf", domain) == world.reserve.address


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("createDomain", ("a", "b", DIGEST, ZERO)),
        ("updateDomain", (1, "a", "b", DIGEST, ZERO)),
        ("setDomainActive", (1, False)),
    ],
)
def test_only_the_governor_changes_domains(world: World, function: str, arguments: tuple[Any, ...]) -> None:
    refusal = world.chain.refusal(DOMAINS, function, *arguments, sender=world.owner)
    assert refusal == "OwnableUnauthorizedAccount"


@pytest.mark.parametrize(
    ("name", "uri", "error"), [("", "u", "NoName"), ("n" * 513, "u", "TextTooLong"), ("n", "u" * 513, "TextTooLong")]
)
def test_a_domain_needs_a_name_and_its_texts_are_bounded(world: World, name: str, uri: str, error: str) -> None:
    assert world.chain.refusal(DOMAINS, "createDomain", name, uri, DIGEST, ZERO, sender=world.governor) == error
    changed = (world.domain, name, uri, DIGEST, ZERO)
    assert world.chain.refusal(DOMAINS, "updateDomain", *changed, sender=world.governor) == error


def test_an_unknown_domain_cannot_be_read_or_changed(world: World) -> None:
    for domain in (0, 99):
        assert world.chain.refusal(DOMAINS, "domainOf", domain) == "NoSuchDomain"
        changed = (domain, "a", "b", DIGEST, ZERO)
        assert world.chain.refusal(DOMAINS, "updateDomain", *changed, sender=world.governor) == "NoSuchDomain"
        closing = (domain, False)
        assert world.chain.refusal(DOMAINS, "setDomainActive", *closing, sender=world.governor) == "NoSuchDomain"
        assert world.chain.call(DOMAINS, "isActive", domain) is False


def test_a_closed_domain_admits_no_pools_or_members_until_it_is_reopened(world: World) -> None:
    world.register("provider", "node2")
    pending = world.create_pool(world.domain, active=False)
    world.chain.send(DOMAINS, "setDomainActive", world.domain, False, sender=world.governor)
    new = (world.domain, world.roles(), TERMS, "")
    assert world.chain.refusal(POOLS, "createPool", *new, sender=world.owner) == "DomainClosed"
    assert world.chain.refusal(POOLS, "activate", pending, sender=world.owner) == "DomainClosed"
    assert world.chain.refusal(POOLS, "join", *world.joining("node2").values()) == "DomainClosed"
    world.submit()
    world.chain.send(DOMAINS, "setDomainActive", world.domain, True, sender=world.governor)
    world.chain.send(POOLS, "activate", pending, sender=world.owner)
    world.join("node2")
