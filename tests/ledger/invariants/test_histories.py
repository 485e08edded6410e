"""Histories depend only on the choices of Hypothesis, not on the chain that they run on."""

from __future__ import annotations

import random

import pytest
from eth_utils.crypto import keccak

from tests.kit.contract_world import SHA256, actor
from tests.ledger.invariants.machine import SEATS, VALIDATORS, known_terms
from tests.ledger.invariants.model import FORGED, Economy, Pool, Provider, Refused, Verdict, Work

POOL = 1
KEY = keccak(text="work")


@pytest.mark.parametrize("seats", SEATS, ids=["four validators", "three validators"])
def test_the_same_choices_lead_to_the_same_dispute_under_any_block_hashes(seats: tuple[str, ...]) -> None:
    for choices in range(20):
        assert len({str(dispute(seats, chain, random.Random(choices))) for chain in range(8)}) == 1


def dispute(seats: tuple[str, ...], chain: int, choices: random.Random) -> list[tuple[str, str, int]]:
    """Disputes a verdict and has validators decide, by place; returns each refusal, status and outcome."""
    terms = known_terms({})
    work = Work(POOL, "node", 10, 10, terms, since=1_000, file=SHA256)
    economy = Economy(
        unbonding_period=1,
        owners={"node": "provider"},
        providers={"provider": Provider(active=10_000)},
        pools={POOL: Pool(terms=terms, burns=False, balance=10_000, validators=seats)},
        wallets={},
        addresses={name: actor(name).address for name in VALIDATORS},
        hash_of=lambda block: keccak(text=f"block {block} of chain {chain}"),
        now=1_000,
        block=1,
        works={KEY: work},
    )
    economy.judge(KEY, Verdict(FORGED, SHA256, 10, decisive=False), VALIDATORS[0])
    economy.dispute(KEY, "provider")
    course = []
    for _ in range(6):
        economy.now += choices.choice([1, terms.dispute // 5])
        verdict = Verdict(choices.randint(1, 3), SHA256, 10, decisive=True)
        validator = economy.turns(KEY, VALIDATORS)[choices.randrange(len(VALIDATORS))]
        economy.block += 1
        refused = ""
        try:
            economy.judge(KEY, verdict, validator)
        except Refused as refusal:
            refused = refusal.name
        course.append((refused, work.status, work.outcome))
    return course
