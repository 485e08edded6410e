"""Attacks that choose slots, sell one file to two pools, or hold leases to their end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.devnet.attacks.edits import OtherPool
from cli.devnet.attacks.slots import SlotShopper, Slow
from protocol.identifiers import ZERO_DIGEST
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import SlotSalt
from tests.kit.attack_harness import POOL, AttackHarness

ORCHESTRATOR = Key.from_hex("0x" + "5c" * 32)


def test_no_slot_can_be_predicted(workshop: AttackHarness) -> None:
    bench = workshop.toolkit()
    foretold = [SlotShopper.foretell(bench, workshop.grant(7_000 + n)) for n in range(32)]
    leased = [bench.seed(workshop.grant(7_001 + n)) for n in range(32)]
    assert not set(foretold) & set(leased)


def test_without_a_salt_the_next_slot_was_predictable(workshop: AttackHarness) -> None:
    """The prediction itself is correct: with the lease's salt it would give the slot's seed."""
    bench, grant = workshop.toolkit(), workshop.grant(7_100)
    following = workshop.grant(7_101, beacon=grant.beacon)
    unsalted = following.model_copy(update={"lease": following.lease.model_copy(update={"salt": ZERO_DIGEST})})
    assert SlotShopper.foretell(bench, grant) == bench.seed(unsalted)
    assert SlotShopper.foretell(bench, grant) != bench.seed(following)


def test_the_slot_shopper_requests_predicted_slots_and_makes_honest_files(workshop: AttackHarness) -> None:
    shopper = SlotShopper()
    assert shopper.wish(3) == 3
    wishes = set()
    for index in range(7_200, 7_206):
        assert workshop.hand_in(shopper, workshop.grant(index, groups=1)) is not None
        wishes.add(shopper.wish(3))
    assert 3 in wishes or 1_003 in wishes
    assert wishes <= {3, 1_003}


def test_a_salt_is_deterministic_and_needs_the_orchestrators_key() -> None:
    domain = SigningDomain(31337, ORCHESTRATOR.address)
    slot = SlotSalt(
        pool_id=1, run=ZERO_DIGEST, step=1, index=1, node=ORCHESTRATOR.address, version=1, digest=ZERO_DIGEST
    )
    salt = slot.derive(ORCHESTRATOR, domain)
    assert salt == slot.derive(ORCHESTRATOR, domain)
    others = [
        slot.derive(Key.generate(), domain),
        replace(slot, index=2).derive(ORCHESTRATOR, domain),
        replace(slot, pool_id=2).derive(ORCHESTRATOR, domain),
        slot.derive(ORCHESTRATOR, SigningDomain(1, ORCHESTRATOR.address)),
    ]
    assert salt not in others


def test_two_pools_of_one_run_get_different_slots(workshop: AttackHarness) -> None:
    bench = workshop.toolkit()
    here, there = workshop.grant(7_300, groups=1), workshop.grant(7_300, groups=1, pool_id=POOL + 1)
    assert bench.seed(here) != bench.seed(there)
    moved = workshop.hand_in(OtherPool(), here)
    honest = workshop.hand_in(SlotShopper(), here)
    assert moved is not None
    assert honest is not None
    assert Path(moved.path).read_bytes() != Path(honest.path).read_bytes()


@pytest.mark.parametrize(("lease_s", "waits"), [(0, 0.0), (100, 95.0)])
def test_the_slow_node_waits_until_its_lease_nearly_ends(lease_s: int, waits: float, workshop: AttackHarness) -> None:
    time = [1_000.0]

    def sleep(seconds: float) -> None:
        time[0] += seconds

    grant = workshop.grant(7_400, groups=1)
    grant = grant.model_copy(update={"lease": grant.lease.model_copy(update={"expiry": 1_000 + lease_s})})
    assert workshop.hand_in(Slow(now=lambda: time[0], sleep=sleep), grant) is not None
    assert time[0] - 1_000 == pytest.approx(waits, abs=1.0)
