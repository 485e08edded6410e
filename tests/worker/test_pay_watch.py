"""A worker stops leasing when work is not paid: the rule alone, and on a real chain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from structlog.testing import capture_logs

from ledger.amounts import UNIT, format_amount
from protocol.errors import Unavailable
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST, Digest
from protocol.leases import Lease, WorkKey
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome, ReasonCode
from tests.kit.verdicts import verdict_on
from tests.kit.world import POOL, QUICK, TERMS, World
from worker.chain.ledger_chain import LedgerChain, Payment
from worker.delivery.pay_watch import CHECKS_PER_ROUND, MOST_WATCHED, PayWatch
from worker.state import StateDirectory

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@dataclass
class Ends:
    """A ledger on which each piece of work ends as the test specifies."""

    found: dict[Digest, Payment] = field(default_factory=dict)
    time: datetime = NOW
    down: bool = False
    asked: int = 0

    async def now(self) -> datetime:
        if self.down:
            raise Unavailable("the chain is down")
        return self.time

    async def payment(self, key: WorkKey) -> Payment | None:
        self.asked += 1
        return self.found.get(key.hash)


def lease(index: int, *, pool_id: int = POOL) -> Lease:
    return Lease(
        pool_id=pool_id,
        run=ZERO_DIGEST,
        step=3,
        index=index,
        node=ZERO_ADDRESS,
        version=0,
        digest=ZERO_DIGEST,
        beacon_block=1,
        salt=ZERO_DIGEST,
        groups=1,
        max_units=100,
        expiry=int(NOW.timestamp()) + 600,
    )


def watch(state: StateDirectory, ends: Ends) -> PayWatch:
    return PayWatch(state=state, chain=cast("LedgerChain", ends), clock=ManualClock(NOW))


async def ended(pay: PayWatch, ends: Ends, *how: Payment | None, first: int = 0) -> None:
    """Delivers pieces of work that end as given.

    None stands for work that the ledger refused until its lease had ended.
    """
    for index, one in enumerate(how, first):
        if one is None:
            pay.refused(lease(index), "EscrowTooLow(1, 0, 5)")
        else:
            pay.delivered(lease(index))
            ends.found[lease(index).key.hash] = one
    await pay.check()


@pytest.mark.parametrize(
    ("how", "stops"),
    [
        ((Payment.EXPIRED,) * 2, False),
        ((Payment.EXPIRED,) * 3, True),
        ((None,) * 3, True),
        ((Payment.EXPIRED, None, Payment.EXPIRED), True),
        ((Payment.EXPIRED, Payment.EXPIRED, Payment.PAID, Payment.EXPIRED), False),
        ((Payment.UNPAID,) * 9, False),
        ((Payment.EXPIRED, Payment.UNPAID, Payment.EXPIRED, Payment.EXPIRED), True),
        ((Payment.OPEN,) * 9, False),
    ],
)
async def test_three_unpaid_works_in_a_row_stop_leasing_and_rejections_do_not(
    state: StateDirectory, how: tuple[Payment | None, ...], stops: bool
) -> None:
    ends = Ends(time=NOW + timedelta(minutes=11))
    pay = watch(state, ends)
    with capture_logs() as lines:
        await ended(pay, ends, *how)
    assert bool(pay.stopped) is stops
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["leasing-stopped"] * stops


async def test_the_reason_for_stopping_lists_the_unpaid_works(state: StateDirectory) -> None:
    ends = Ends(time=NOW + timedelta(minutes=11))
    pay = watch(state, ends)
    await ended(pay, ends, Payment.EXPIRED, None, Payment.EXPIRED)
    assert pay.stopped == (
        "3 delivered pieces of work in a row were not paid: step 3, index 0 expired without a verdict; step 3, index 1 "
        "was refused by the ledger (EscrowTooLow); step 3, index 2 expired without a verdict"
    )


async def test_a_stop_survives_a_restart_and_ends_with_the_command_resume(state: StateDirectory) -> None:
    ends = Ends()
    pay = watch(state, ends)
    await ended(pay, ends, *[Payment.EXPIRED] * 3)
    again = watch(state, ends)
    assert again.stopped == pay.stopped != ""
    again.resume()
    assert again.stopped == watch(state, ends).stopped == ""
    await ended(again, ends, *[Payment.EXPIRED] * 2, first=10)
    assert again.stopped == "", "three more are needed"


async def test_a_stop_ends_when_an_earlier_work_is_paid(state: StateDirectory) -> None:
    ends = Ends()
    pay = watch(state, ends)
    await ended(pay, ends, Payment.OPEN, *[Payment.EXPIRED] * 3)
    assert pay.stopped
    ends.found[lease(0).key.hash] = Payment.PAID
    await watch(state, ends).check()
    pay = watch(state, ends)
    assert pay.stopped == ""


async def test_work_that_was_refused_and_later_accepted_is_no_loss(state: StateDirectory) -> None:
    ends = Ends()
    pay = watch(state, ends)
    for index in range(3):
        pay.refused(lease(index), "EscrowTooLow")
    await pay.check()
    assert pay.stopped == "", "their leases have not ended"
    for index in range(3):
        pay.delivered(lease(index))
        ends.found[lease(index).key.hash] = Payment.PAID
    ends.time += timedelta(minutes=11)
    await pay.check()
    assert pay.stopped == ""


@pytest.mark.parametrize(
    "reason", ["StakeTooLow(1, 2)", "LeaseExpired", "the relayer takes too long", "", "NodeNotWilling"]
)
async def test_refusals_not_caused_by_the_pool_do_not_count(state: StateDirectory, reason: str) -> None:
    ends = Ends(time=NOW + timedelta(hours=1))
    pay = watch(state, ends)
    for index in range(3):
        pay.refused(lease(index), reason)
    await pay.check()
    assert pay.stopped == ""


async def test_an_unreachable_chain_does_not_count_as_unpaid(state: StateDirectory) -> None:
    ends = Ends(down=True)
    pay = watch(state, ends)
    with pytest.raises(Unavailable):
        await ended(pay, ends, *[Payment.EXPIRED] * 3)
    assert pay.stopped == ""


async def test_checks_and_memory_are_bounded_and_every_work_is_checked_in_turn(state: StateDirectory) -> None:
    ends = Ends()
    pay = watch(state, ends)
    for index in range(MOST_WATCHED + 10):
        pay.delivered(lease(index))
        ends.found[lease(index).key.hash] = Payment.OPEN
    for index in range(MOST_WATCHED, MOST_WATCHED + 3):
        ends.found[lease(index).key.hash] = Payment.EXPIRED
    await pay.check()
    assert ends.asked == CHECKS_PER_ROUND
    for _ in range(MOST_WATCHED // CHECKS_PER_ROUND):
        await pay.check()
    assert pay.stopped


async def test_a_damaged_state_file_is_replaced(state: StateDirectory) -> None:
    for saved in ({"watched": [{"step": 1}]}, {"watched": "x"}, {"unpaid": 7}):
        state.write("pay", saved)
        assert watch(state, Ends()).stopped == ""


# On a real chain


@pytest.fixture
async def chain(world: World) -> AsyncIterator[LedgerChain]:
    """Returns the chain from the node's point of view."""
    chain = LedgerChain(rpc=world.url, deployment=world.deployment, key=world.keys["node"], pool_id=POOL, policy=QUICK)
    yield chain
    await chain.close()


async def submitted(world: World, index: int) -> Lease:
    item = await world.submission(index=index)
    assert await (await world.as_("orchestrator")).work.submit_batch([item]) == []
    return item.lease.lease


async def test_missing_verdicts_are_noticed_even_if_no_caller_marks_the_work_as_expired(
    world: World, chain: LedgerChain, state: StateDirectory
) -> None:
    await world.member()
    pay = PayWatch(state=state, chain=chain, clock=ManualClock())
    leases = [await submitted(world, index) for index in range(3)]
    for one in leases:
        pay.delivered(one)
    await pay.check()
    assert pay.stopped == ""
    await world.warp(TERMS.judge_period + SECOND)
    ledger = await world.as_("owner")
    await ledger.work.expire([leases[0].key.hash])
    await pay.check()
    assert pay.stopped.count("expired without a verdict") == 3


async def test_a_verdict_ends_the_wait_and_payment_is_noticed(world: World, chain: LedgerChain) -> None:
    await world.member()
    paid, rejected = await submitted(world, 0), await submitted(world, 1)
    validator = await world.as_("validator")
    said = (
        await verdict_on(validator, paid.key.hash, Outcome.ACCEPTED),
        await verdict_on(validator, rejected.key.hash, Outcome.REJECTED, reason=ReasonCode.FORMAT_SCHEMA),
    )
    assert await validator.work.judge(said) == []
    assert await chain.payment(paid.key) is Payment.OPEN
    await world.warp(TERMS.challenge_period + SECOND)
    await validator.work.finalize([paid.key.hash, rejected.key.hash])
    assert await chain.payment(paid.key) is Payment.PAID
    assert await chain.payment(rejected.key) is Payment.UNPAID
    assert await chain.payment((await world.submission(index=9)).lease.lease.key) is None


async def test_a_contributor_sees_a_pools_payment_record_and_announced_withdrawal(
    world: World, chain: LedgerChain
) -> None:
    await world.member()
    await (await world.as_("provider")).stake.add(100 * UNIT)
    assert (await chain.pool_record()).summary == "no work has finished lately"
    leases = [await submitted(world, index) for index in range(12)]
    validator, owner = await world.as_("validator"), await world.as_("owner")
    first, second, third, *silent = (one.key.hash for one in leases)
    said = [await verdict_on(validator, key, Outcome.ACCEPTED) for key in (first, second)]
    said.append(await verdict_on(validator, third, Outcome.REJECTED, reason=ReasonCode.FORMAT_SCHEMA))
    await validator.work.judge(said)
    await world.warp(max(TERMS.challenge_period, TERMS.judge_period) + SECOND)
    await validator.work.finalize([first, second, third])
    await validator.work.expire(silent)
    record = await chain.pool_record()
    assert (record.accepted, record.refused, record.expired) == (2, 1, 9)
    assert record.is_bad
    assert record.summary == (
        "of the newest 12 pieces of work, 17% were accepted, 8% refused by validators, 75% expired without a verdict"
    )
    await owner.pools.announce_withdrawal(POOL, 90 * UNIT)
    free = format_amount((await owner.pools.escrow(POOL)).free)
    assert f"; the owner withdraws 90 of {free} MUST free escrow" in (await chain.pool_record()).summary


async def test_the_number_of_blocks_read_is_bounded(
    world: World, chain: LedgerChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old results are ignored, so that the doctor does not read years of blocks."""
    await world.member()
    one = await submitted(world, 0)
    await world.warp(TERMS.judge_period + SECOND)
    await (await world.as_("owner")).work.expire([one.key.hash])
    assert (await chain.pool_record()).expired == 1
    await world.controls.mine(5)
    monkeypatch.setattr("worker.chain.pool_record.BLOCKS_BACK", (1, 2, 4))
    assert (await chain.pool_record()).total == 0
