"""Conditions under which a validator pauses and resumes, on a manual clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from protocol.errors import Unavailable
from protocol.identifiers import ZERO_ADDRESS
from protocol.runtime.clock import ManualClock
from tests.kit.submissions import POOL
from validator.domain.items import ItemId
from validator.health import (
    FAILS,
    FIRST_TEST_PAUSE,
    IN_A_ROW,
    LONGEST_TEST_PAUSE,
    TRUSTED_FOR,
    Health,
    ValidatorUnhealthy,
)
from validator.store.keys import keys_of
from validator.store.members import Condition, Members, MemberState

TROUBLE = Unavailable("it could not be judged", code="x", hint="look")


class Patient:
    """A validator whose health the test controls."""

    def __init__(self, redis: Redis) -> None:
        self.clock = ManualClock()
        self.members = Members(redis, keys=keys_of(POOL), validator=ZERO_ADDRESS, place="here")
        self.health = Health(self.test, members=self.members, clock=self.clock)
        self.broken: Exception | None = None
        self.tests = 0

    async def test(self) -> None:
        self.tests += 1
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken

    async def pass_time(self, by: timedelta) -> None:
        await self.clock.turn(by)
        await self.health.round()


@pytest.fixture
def patient(redis: Redis) -> Patient:
    return Patient(redis)


async def add_another(redis: Redis) -> None:
    other = Members(redis, keys=keys_of(POOL), validator=ZERO_ADDRESS, place="elsewhere")
    await other.announce(Condition(state=MemberState.WELL), since=timedelta())


async def test_no_work_is_taken_before_the_first_self_test_has_passed(patient: Patient) -> None:
    assert not patient.health.may_take(held=0)
    with pytest.raises(ValidatorUnhealthy, match="has not ended"):
        await patient.health.check()
    await patient.health.round()
    assert patient.health.may_take(held=7)
    await patient.health.check()
    await patient.pass_time(timedelta(hours=1))
    assert patient.tests == 1, "a healthy validator is not tested without a reason"


async def test_an_unhealthy_validator_tests_itself_with_growing_pauses_and_resumes_when_it_passes(
    patient: Patient,
) -> None:
    patient.broken = Unavailable("no room", code="disk-full", hint="make some")
    for _ in range(600):
        await patient.pass_time(timedelta(seconds=1))
    most = 600 / LONGEST_TEST_PAUSE.total_seconds() + 6
    assert 10 < patient.tests < most
    condition = patient.health.condition
    assert (condition.code, condition.why, condition.hint) == ("disk-full", "no room", "make some")
    assert condition.tests == patient.tests
    assert patient.health.since > timedelta(seconds=590)
    patient.broken = None
    await patient.pass_time(LONGEST_TEST_PAUSE)
    assert patient.health.well
    assert (await patient.members.all())[0].condition.state is MemberState.WELL


async def test_simultaneous_errors_cause_one_self_test_and_its_crash_is_a_failure(patient: Patient) -> None:
    await patient.health.round()
    assert all(await asyncio.gather(*(patient.health.recheck() for _ in range(50))))
    assert patient.tests == 2
    patient.broken = ZeroDivisionError("a bug in Muster")
    assert await patient.health.recheck(), "it passed a moment ago"
    await patient.clock.turn(TRUSTED_FOR)
    assert not any(await asyncio.gather(*(patient.health.recheck() for _ in range(50))))
    assert patient.tests == 3
    assert patient.health.condition.code == "self-test-crashed"


async def test_a_validator_that_always_fails_pauses_if_another_is_available_and_then_tries_one_item(
    patient: Patient, redis: Redis
) -> None:
    await patient.health.round()
    for number in range(2 * IN_A_ROW):
        await patient.health.failed(ItemId(f"{number}"), TROUBLE)
    assert patient.health.well, "no other validator is present"
    await add_another(redis)
    await patient.health.failed(ItemId("one more"), TROUBLE)
    assert patient.health.condition.code == FAILS
    await patient.pass_time(FIRST_TEST_PAUSE)
    assert patient.health.may_take(held=0)
    assert not patient.health.may_take(held=1), "one item at a time"
    await patient.health.failed(ItemId("and another"), TROUBLE)
    await patient.pass_time(FIRST_TEST_PAUSE)
    assert not patient.health.may_take(held=0), "each pause is longer"
    await patient.pass_time(FIRST_TEST_PAUSE)
    assert patient.health.may_take(held=0)
    patient.health.went_well()
    assert patient.health.may_take(held=7)


async def test_repeated_failure_of_one_item_does_not_pause_a_validator(patient: Patient, redis: Redis) -> None:
    await patient.health.round()
    await add_another(redis)
    for _ in range(10 * IN_A_ROW):
        await patient.health.failed(ItemId("poison"), TROUBLE)
    assert patient.health.well


async def test_a_validator_without_a_connection_to_the_store_pauses_even_if_it_is_the_only_one(
    patient: Patient,
) -> None:
    await patient.health.round()
    for number in range(IN_A_ROW):
        assert patient.health.may_take(held=0)
        await patient.health.failed(ItemId(f"{number}"), TROUBLE, outside=True)
    tried = 0
    for _ in range(600):
        await patient.pass_time(timedelta(seconds=1))
        if patient.health.may_take(held=0):
            tried += 1
            await patient.health.failed(ItemId(f"later {tried}"), TROUBLE, outside=True)
    assert 600 / LONGEST_TEST_PAUSE.total_seconds() < tried < 600 / LONGEST_TEST_PAUSE.total_seconds() + 6
    assert "could not be judged here" in patient.health.condition.why


async def test_the_unhealthy_period_begins_with_the_first_of_several_reasons(patient: Patient) -> None:
    await patient.health.round()
    for seconds in range(60):
        patient.broken = Unavailable("no", code=f"reason-{seconds % 2}")
        await patient.health.recheck()
        await patient.pass_time(LONGEST_TEST_PAUSE)
    assert patient.health.since > timedelta(minutes=10)
