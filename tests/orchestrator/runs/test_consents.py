"""Consents that a node sends through the relayer: checks, relaying, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ledger.amounts import UNIT
from orchestrator.loops.relayer import RETRY_PAUSE
from orchestrator.relayer.consents import MAX_PER_DAY
from protocol.errors import Unavailable
from protocol.identifiers import ZERO_DIGEST
from protocol.identity.keys import Key
from protocol.node_registration import NodeConsent, ProviderConsent
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


async def test_a_staked_provider_registers_a_few_nodes_per_day(run: RunUnderTest) -> None:
    for _ in range(MAX_PER_DAY["provider"]):
        node = Key.generate()
        assert await send(run, node, signed_consents(run, node)) == (200, "queued")
    node = Key.generate()
    answer = await run.pool.send(node, "/v1/consents", signed_consents(run, node))
    assert (answer.status_code, "registerNode" in answer.json()["hint"]) == (429, True)
    await run.pool.clock.turn(timedelta(days=1))
    assert await send(run, node, signed_consents(run, node)) == (200, "queued")


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
