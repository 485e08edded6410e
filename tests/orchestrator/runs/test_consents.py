"""Consents that a node sends through the relayer: checks, relaying, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ledger.amounts import UNIT
from orchestrator.chain.interface import MemberEvent
from orchestrator.loops.relayer import RETRY_PAUSE
from orchestrator.relayer.consents import MAX_PER_DAY, MAX_UNJOINED, POOR_FOR, RATE_PER_IP
from protocol.errors import Unavailable
from protocol.http.rates import IpRates
from protocol.identifiers import ZERO_DIGEST
from protocol.identity.keys import Key
from protocol.node_registration import NodeConsent, ProviderConsent
from tests.kit.memory_ledger import PROVIDER
from tests.kit.memory_run_ledger import RunUnderTest

STAKED, STRANGER = Key.generate(), Key.generate()
MINUTES = timedelta(minutes=10)


def signed_consents(
    run: RunUnderTest,
    node: Key,
    *,
    provider: Key = STAKED,
    capacity: int = 2,
    nonce: int = 0,
    valid: timedelta = MINUTES,
    node_signer: Key | None = None,
    provider_signer: Key | None = None,
) -> dict[str, Any]:
    run.pool.ledger.stakes.setdefault(STAKED.address, 100 * UNIT)
    deadline, domain = int((run.pool.clock.now() + valid).timestamp()), run.pool.ledger.registry_domain
    both: dict[str, Any] = {
        "provider": provider.address,
        "node": node.address,
        "nonce": nonce,
        "deadline": deadline,
    }
    wide: dict[str, Any] = {"specs_hash": ZERO_DIGEST, "capacity": capacity}
    by_node = NodeConsent(**both).sign(node_signer or node, domain)
    by_provider = ProviderConsent(**both, **wide).sign(provider_signer or provider, domain)
    return {
        **both,
        **wide,
        "node_signature": "0x" + by_node.hex(),
        "provider_signature": "0x" + by_provider.hex(),
    }


async def send(run: RunUnderTest, node: Key, body: dict[str, Any]) -> tuple[int, str]:
    answer = await run.pool.send(node, "/v1/consents", body)
    return answer.status_code, answer.json()["state" if answer.status_code == 200 else "code"]


async def test_a_node_of_a_staked_provider_is_registered_once(run: RunUnderTest) -> None:
    node = Key.generate()
    body = signed_consents(run, node)
    assert await send(run, node, body) == (200, "queued")
    assert await send(run, node, body) == (200, "queued")
    run.chain.die_after_carrying = True
    with pytest.raises(Unavailable):
        await run.relayer.round()
    run.chain.die_after_carrying = False
    await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    assert await run.relayer.round() == 0
    assert run.chain.batches == [1]
    assert run.chain.registered == {node.address: (1, STAKED.address)}
    run.pool.ledger.nonces[node.address] = 1
    assert await send(run, node, body) == (200, "carried")


async def test_a_registration_that_a_reorg_removed_is_relayed_again(run: RunUnderTest) -> None:
    node = Key.generate()
    body = signed_consents(run, node, valid=timedelta(hours=1))
    assert await send(run, node, body) == (200, "queued")
    assert await run.relayer.round() == 1
    run.chain.registered.clear()
    run.pool.ledger.down = True
    assert await send(run, node, body) == (200, "carried")
    run.pool.ledger.down = False
    await run.pool.clock.turn(MINUTES)
    assert await send(run, node, body) == (200, "queued")
    assert await run.relayer.round() == 1
    assert run.chain.registered == {node.address: (1, STAKED.address)}
    run.pool.ledger.nonces[node.address] = 1
    await run.pool.clock.turn(MINUTES)
    assert await send(run, node, body) == (200, "carried")


def _poor(run: RunUnderTest, node: Key) -> dict[str, Any]:
    return signed_consents(run, node, provider=STRANGER)


def _registered(run: RunUnderTest, node: Key) -> dict[str, Any]:
    run.pool.ledger.register(node.address)
    body = signed_consents(run, node)
    run.pool.ledger.nodes[node.address] = replace(run.pool.ledger.nodes[node.address], provider=STAKED.address)
    return body


def _banned(run: RunUnderTest, node: Key) -> dict[str, Any]:
    run.pool.ledger.register(node.address)
    run.pool.ledger.nodes[node.address] = replace(run.pool.ledger.nodes[node.address], provider=None, banned=True)
    return signed_consents(run, node)


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (_poor, (409, "stake-too-low")),
        (_registered, (409, "registered")),
        (_banned, (403, "banned")),
        (lambda run, node: signed_consents(run, STRANGER), (403, "foreign-consent")),
        (lambda run, node: signed_consents(run, node, capacity=11), (409, "stake-too-low")),
        (lambda run, node: signed_consents(run, node, capacity=1), (422, "unprocessable")),
        (lambda run, node: signed_consents(run, node, nonce=1), (422, "unprocessable")),
        (lambda run, node: signed_consents(run, node, valid=timedelta(0)), (422, "unprocessable")),
        (lambda run, node: signed_consents(run, node, valid=timedelta(days=1, seconds=1)), (422, "unprocessable")),
        (lambda run, node: signed_consents(run, node, node_signer=STRANGER), (422, "unprocessable")),
        (lambda run, node: signed_consents(run, node, provider_signer=STRANGER), (422, "unprocessable")),
    ],
)
async def test_consents_that_should_cost_the_pool_nothing_are_refused_before_they_do(
    run: RunUnderTest, make: Callable[[RunUnderTest, Key], dict[str, Any]], refusal: tuple[int, str]
) -> None:
    node = Key.generate()
    assert await send(run, node, make(run, node)) == refusal
    await run.relayer.round()
    assert run.chain.batches == []


async def join(run: RunUnderTest, *nodes: Key) -> None:
    for node in nodes:
        run.pool.ledger.register(node.address)
        run.pool.ledger.happen(node.address, MemberEvent.JOINED, member=True)
    await run.pool.sync.round()


async def test_a_staked_provider_registers_a_few_nodes_per_day_while_they_join(run: RunUnderTest) -> None:
    for _ in range(MAX_PER_DAY["provider"] // MAX_UNJOINED):
        nodes = [Key.generate() for _ in range(MAX_UNJOINED)]
        for node in nodes:
            assert await send(run, node, signed_consents(run, node)) == (200, "queued")
        late = Key.generate()
        assert await send(run, late, signed_consents(run, late)) == (409, "unjoined-nodes")
        await join(run, *nodes)
    await run.pool.clock.turn(timedelta(minutes=1))  # the rate of the IP
    answer = await run.pool.send(late, "/v1/consents", signed_consents(run, late))
    assert (answer.status_code, "registerNode" in answer.json()["hint"]) == (429, True)
    await run.pool.clock.turn(timedelta(days=1))
    assert await send(run, late, signed_consents(run, late)) == (200, "queued")


async def test_the_pool_pays_for_a_number_of_registrations_per_day_or_for_none(run: RunUnderTest) -> None:
    node, service = Key.generate(), run.pool.dependencies.consents
    service._most_per_day = 0
    assert await send(run, node, signed_consents(run, node)) == (403, "consents-not-relayed")
    service._most_per_day = 1
    assert await send(run, node, signed_consents(run, node)) == (200, "queued")
    other = Key.generate()
    assert await send(run, other, signed_consents(run, other)) == (429, "rate-limited")
    service._most_per_day = 0
    assert await send(run, node, signed_consents(run, node)) == (200, "queued")


async def test_a_provider_without_stake_is_asked_about_once_a_minute_and_needs_stake_in_every_pool(
    run: RunUnderTest,
) -> None:
    run.pool.ledger.stake_per_capacity = 0
    for _ in range(2):
        node, before = Key.generate(), run.pool.ledger.calls
        assert await send(run, node, _poor(run, node)) == (409, "stake-too-low")
    assert run.pool.ledger.calls == before
    run.pool.ledger.stakes[STRANGER.address] = UNIT
    await run.pool.clock.turn(POOR_FOR)
    assert await send(run, node, _poor(run, node)) == (200, "queued")


async def test_strangers_cause_few_reads_of_the_chain(run: RunUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(RATE_PER_IP.burst):
        node = Key.generate()
        assert await send(run, node, signed_consents(run, node, provider=Key.generate())) == (409, "stake-too-low")
    before = run.pool.ledger.calls
    assert await send(run, node, signed_consents(run, node, provider=Key.generate())) == (429, "rate-limited")
    assert run.pool.ledger.calls == before
    service = run.pool.dependencies.consents
    monkeypatch.setattr(service, "_ip_rates", IpRates(RATE_PER_IP, clock=run.pool.clock))
    monkeypatch.setattr(service, "_rate", IpRates(replace(RATE_PER_IP, burst=1), clock=run.pool.clock))
    assert await send(run, node, signed_consents(run, node)) == (200, "queued")
    other = Key.generate()
    answer = await run.pool.send(other, "/v1/consents", signed_consents(run, other))
    assert (answer.status_code, "registerNode" in answer.json()["hint"]) == (429, True)


async def test_other_consents_with_the_same_nonce_do_not_get_the_receipt_of_the_first(run: RunUnderTest) -> None:
    node = Key.generate()
    run.pool.ledger.stakes[STRANGER.address] = 100 * UNIT
    assert await send(run, node, signed_consents(run, node)) == (200, "queued")
    assert await send(run, node, signed_consents(run, node, valid=2 * MINUTES)) == (200, "queued")
    for other in (_poor(run, node), signed_consents(run, node, capacity=3)):
        assert await send(run, node, other) == (409, "other-consents")
    run.chain.registered[node.address] = (1, PROVIDER.address)
    await run.relayer.round()
    assert await send(run, node, signed_consents(run, node)) == (200, "refused")
    await run.pool.clock.turn(timedelta(days=1))
    assert await send(run, node, _poor(run, node)) == (409, "other-consents")


async def test_expired_consents_and_those_for_another_provider_are_settled(run: RunUnderTest) -> None:
    late, other = Key.generate(), Key.generate()
    await send(run, late, signed_consents(run, late))
    await send(run, other, signed_consents(run, other, valid=timedelta(hours=1)))
    run.chain.registered[other.address] = (1, STRANGER.address)
    await run.pool.clock.turn(MINUTES + timedelta(seconds=1))
    assert await run.relayer.round() == 0
    assert await send(run, late, signed_consents(run, late)) == (200, "queued")
    assert await send(run, other, signed_consents(run, other)) == (200, "refused")
    assert run.chain.batches == []
