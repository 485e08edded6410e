"""Attacks of validators and owners on the real contracts: laundering, framing, and taking work without paying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest

from ledger.client.pools import Escrow
from ledger.client.work import Verdict, WorkRecord, WorkStatus
from ledger.economics import collusion, explain_economics
from ledger.errors import TransactionReverted
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.verdicts import Outcome, ReasonCode
from tests.kit.chain import development_chain, development_process
from tests.kit.world import POOL, TERMS, World, founded, world

__all__ = ["development_chain", "development_process", "founded", "world"]

FIRST, OTHERS = "validator", ("second", "third", "publisher")
"""The fourth validator is the publisher, which has gas and no other role here."""
UNITS = 100
MAX_UNITS = 100
"""Work units of a lease in `World`."""
A_MOMENT = timedelta(seconds=1)
REASONS = {Outcome.ACCEPTED: ReasonCode.PASSED, Outcome.FORGED: ReasonCode.SAMPLING_REPLAY}


@dataclass(frozen=True, slots=True)
class Bench:
    """A pool with four validators and a member."""

    world: World

    async def judge(self, name: str, key: Digest, outcome: Outcome, *, decisive: bool = False) -> str:
        """Gives a verdict; returns why the ledger refused it, or an empty text."""
        ledger = await self.world.as_(name)
        work = await self.work(key)
        verdict = Verdict(
            key=key,
            sha256=work.sha256,
            units=work.units,
            outcome=outcome,
            reason=REASONS[outcome],
            decisive=decisive,
        )
        return "".join(each.reason for each in await ledger.work.judge([verdict]))

    async def work(self, key: Digest) -> WorkRecord:
        """Returns the work record."""
        found = await (await self.world.as_("owner")).work.get(key)
        assert found is not None
        return found

    async def disputed(self, key: Digest, by: str) -> list[str]:
        """Opens a dispute; returns the validators that may decide it, in their order."""
        await (await self.world.as_(by)).work.dispute(key, ZERO_DIGEST)
        await self.world.warp(A_MOMENT)  # the block after the dispute decides the order
        await (await self.world.as_("owner")).work.draw_juries([key])
        return await self.order(key)

    async def order(self, key: Digest) -> list[str]:
        """Returns the validators that may still decide, in their order."""
        ledger = await self.world.as_("owner")
        turns = {name: await ledger.work.turn_of(key, self.address(name)) for name in (FIRST, *OTHERS)}
        return sorted((name for name, turn in turns.items() if turn is not None), key=lambda name: str(turns[name]))

    async def decide(self, key: Digest, wishes: dict[str, Outcome]) -> None:
        """Has every validator that may decide give its verdict in its turn, until the work is final."""
        while (await self.work(key)).status is WorkStatus.DISPUTED:
            order = await self.order(key)
            assert order, "no validator may decide"
            assert await self.judge(order[0], key, wishes[order[0]], decisive=True) == ""

    def address(self, name: str) -> Address:
        """Returns the address of a validator."""
        return self.world.keys[name].address


@pytest.fixture
async def bench(world: World) -> Bench:
    await world.member()
    await (await world.as_("owner")).pools.add_validator(POOL, world.keys["publisher"].address)
    return Bench(world)


def wishes(corrupt: Sequence[str], *, want: Outcome, truth: Outcome) -> dict[str, Outcome]:
    """Returns the verdict of each validator in a dispute."""
    return {name: want if name in corrupt else truth for name in (FIRST, *OTHERS)}


@pytest.mark.parametrize("corrupt", OTHERS)
async def test_one_corrupt_validator_of_four_launders_no_forged_file(corrupt: str, bench: Bench) -> None:
    key = await bench.world.submitted(units=UNITS)
    stake = await (await bench.world.as_("owner")).stake.of(bench.world.keys["provider"].address)
    assert await bench.judge(FIRST, key, Outcome.FORGED) == ""
    order = await bench.disputed(key, "node")
    assert sorted(order) == sorted(OTHERS)
    if order[0] != corrupt:
        assert "NotYourTurn" in await bench.judge(corrupt, key, Outcome.ACCEPTED, decisive=True)
    await bench.decide(key, wishes([corrupt], want=Outcome.ACCEPTED, truth=Outcome.FORGED))
    work = await bench.work(key)
    assert (work.status, work.outcome) == (WorkStatus.FINAL, Outcome.FORGED)
    after = await (await bench.world.as_("owner")).stake.of(bench.world.keys["provider"].address)
    assert stake.active - after.active == TERMS.penalty_per_unit * MAX_UNITS, "for all units of the lease"


@pytest.mark.parametrize("corrupt", OTHERS)
async def test_one_corrupt_validator_of_four_slashes_no_honest_work(corrupt: str, bench: Bench) -> None:
    key = await bench.world.submitted(units=UNITS)
    assert await bench.judge(corrupt, key, Outcome.FORGED) == ""
    await bench.disputed(key, "node")
    await bench.decide(key, wishes([corrupt], want=Outcome.FORGED, truth=Outcome.ACCEPTED))
    work = await bench.work(key)
    assert (work.status, work.outcome) == (WorkStatus.FINAL, Outcome.ACCEPTED)
    membership = await (await bench.world.as_("owner")).pools.membership(POOL, bench.world.keys["node"].address)
    assert membership is not None


async def test_two_corrupt_validators_of_four_win_when_they_are_drawn_first(bench: Bench) -> None:
    """This attack remains possible: the drawn order decides. `muster pool economics` prints its probability."""
    framers = ("second", "third")
    for index in range(6):
        key = await bench.world.submitted(index=index, units=UNITS)
        assert await bench.judge("second", key, Outcome.FORGED) == ""
        order = await bench.disputed(key, "node")
        # One corrupt validator among the first two is enough: it decides alone, or confirms against an honest one.
        expected = Outcome.FORGED if "third" in order[:2] else Outcome.ACCEPTED
        await bench.decide(key, wishes(framers, want=Outcome.FORGED, truth=Outcome.ACCEPTED))
        assert (await bench.work(key)).outcome is expected
        if expected is Outcome.FORGED:
            break  # the node was expelled
    economics = explain_economics(TERMS, await escrow(bench), units=UNITS, open_work=1)
    assert collusion(economics, validators=4, corrupt=2, looked_at=1).frames == pytest.approx(2 / 3)


async def test_an_accepted_forgery_is_overruled_after_a_second_look(bench: Bench) -> None:
    key = await bench.world.submitted(units=UNITS)
    assert await bench.judge("publisher", key, Outcome.ACCEPTED) == ""
    await bench.disputed(key, FIRST)
    await bench.decide(key, wishes(["publisher"], want=Outcome.ACCEPTED, truth=Outcome.FORGED))
    assert (await bench.work(key)).outcome is Outcome.FORGED


async def test_confirming_a_verdict_with_another_outcome_is_refused(bench: Bench) -> None:
    key = await bench.world.submitted(units=UNITS)
    assert await bench.judge(FIRST, key, Outcome.FORGED) == ""
    sha256 = (await bench.work(key)).sha256
    look = Verdict(key=key, sha256=sha256, units=1, outcome=Outcome.ACCEPTED, reason=1)
    refused = await (await bench.world.as_("second")).work.confirm([look])
    assert ["OutcomeDiffers" in each.reason for each in refused] == [True]


async def test_an_owner_cannot_withdraw_escrow_that_an_open_lease_needs(bench: Bench) -> None:
    item = await bench.world.submission(index=3, units=UNITS)  # leased and not yet submitted
    owner = await bench.world.as_("owner")
    free = (await owner.pools.escrow(POOL)).free
    with pytest.raises(TransactionReverted, match="NotAnnounced"):
        await owner.pools.withdraw_escrow(POOL, free, owner.address)
    await owner.pools.announce_withdrawal(POOL, free)
    with pytest.raises(TransactionReverted, match="NotAnnounced"):
        await owner.pools.withdraw_escrow(POOL, free, owner.address)
    assert await (await bench.world.as_("orchestrator")).work.submit_batch([item]) == []
    await bench.world.warp(TERMS.notice_period + A_MOMENT)
    with pytest.raises(TransactionReverted, match="EscrowTooLow"):
        await owner.pools.withdraw_escrow(POOL, free, owner.address)


async def test_an_ended_pool_still_accepts_work_of_open_leases(bench: Bench) -> None:
    item = await bench.world.submission(index=4, units=UNITS)
    owner = await bench.world.as_("owner")
    await owner.pools.end(POOL)
    assert await (await bench.world.as_("orchestrator")).work.submit_batch([item]) == []


@pytest.mark.parametrize("how", ["evict", "ban", "remove", "ban_provider"])
async def test_an_evicted_node_is_paid_for_the_lease_it_holds(how: str, bench: Bench) -> None:
    item = await bench.world.submission(index=5, units=UNITS)
    manager, keys = await bench.world.as_("manager"), bench.world.keys
    match how:
        case "evict":
            await manager.pools.evict(POOL, keys["node"].address, "after the upload")
        case "ban":
            await manager.pools.ban(POOL, keys["node"].address, "after the upload")
        case "remove":
            await manager.pools.remove(POOL, [keys["node"].address], "dead")
        case _:
            await manager.pools.ban_provider(POOL, keys["provider"].address, "after the upload")
    assert await (await bench.world.as_("orchestrator")).work.submit_batch([item]) == []
    key = item.lease.lease.key.hash
    assert await bench.judge(FIRST, key, Outcome.ACCEPTED) == ""
    await bench.world.warp(TERMS.challenge_period + A_MOMENT)
    owner = await bench.world.as_("owner")
    await owner.work.finalize([key])
    assert await owner.work.accrued(POOL, keys["provider"].address) == TERMS.price_per_unit * UNITS


async def test_a_forger_is_expelled_and_its_provider_cannot_join_another_node_for_a_while(bench: Bench) -> None:
    key = await bench.world.submitted(units=1)
    assert await bench.judge(FIRST, key, Outcome.FORGED) == ""
    await bench.world.warp(TERMS.challenge_period + A_MOMENT)
    owner, provider = await bench.world.as_("owner"), bench.world.keys["provider"].address
    before = (await owner.stake.of(provider)).active
    await owner.work.finalize([key])
    assert before - (await owner.stake.of(provider)).active == TERMS.penalty_per_unit * MAX_UNITS, (
        "one unit was claimed"
    )
    await bench.world.register("node-2")
    with pytest.raises(TransactionReverted):
        await bench.world.join("node-2", nonce=2)
    refused = await (await bench.world.as_("orchestrator")).work.submit_batch(
        [await bench.world.submission(index=9, units=UNITS)]
    )
    assert [each.reason.partition("(")[0] for each in refused] == ["NotMember"]
    await bench.world.warp(TERMS.judge_period + TERMS.challenge_period + TERMS.dispute_period + A_MOMENT)
    await bench.world.join("node-2", nonce=3)


async def escrow(bench: Bench) -> Escrow:
    """Returns the pool's escrow."""
    return await (await bench.world.as_("owner")).pools.escrow(POOL)
