"""Two validators on one Redis, one of them unhealthy: the other judges all work, and parks none."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from ledger.client import Ledger
from ledger.client.work import WorkStatus
from ledger.errors import ChainUnavailable
from ledger.events.types import VerdictGiven
from protocol.errors import MusterError, Unavailable
from protocol.http.object_transfer import TransferError
from protocol.identifiers import Digest
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome
from tests.kit.validators import Host, PoolWithValidators, ValidatorUnderTest
from tests.kit.world import POOL
from validator.examination.interface import NotJudged
from validator.health import FAILS, ValidatorUnhealthy

WORKS = 4


def broken(code: str, *, tested: bool = True, retryable: bool = True) -> Callable[[ValidatorUnderTest], None]:
    """Breaks the examiner for all files, with or without a failing self-test."""

    def breaks(validator: ValidatorUnderTest) -> None:
        validator.examiner.otherwise = NotJudged(code=code, why=f"{code} here", retryable=retryable, hint="mend it")
        if tested:
            validator.examiner.broken = validator.examiner.otherwise

    return breaks


def crashes(validator: ValidatorUnderTest) -> None:
    """Makes the examiner crash, which its self-test shows."""
    validator.examiner.otherwise = ZeroDivisionError("a bug in Muster")
    validator.examiner.broken = NotJudged(code="examiner-failed", why="ZeroDivisionError", retryable=True)


def loses_its_folder(validator: ValidatorUnderTest) -> None:
    """Removes the validator's folder, as a lost disk does."""
    shutil.rmtree(validator.dependencies.settings.directory / "work")


def reaches_no_store(validator: ValidatorUnderTest) -> None:
    """Cuts the connection from this validator to the object store."""

    async def down(*_: object, **__: object) -> None:
        raise TransferError("no route to the store")

    validator.dependencies.remote.transfer.fetch = down  # type: ignore[assignment,method-assign]


def nothing(_validator: ValidatorUnderTest) -> None:
    """Does nothing: the host is already unhealthy."""


def wrong_clock(clock: datetime) -> Host:
    """Returns a host whose clock is an hour behind."""
    turned = ManualClock()
    turned.jump(clock - turned.now() - timedelta(hours=1))
    return Host(clock=turned)


def reaches_no_orchestrator(validator: ValidatorUnderTest) -> None:
    """Cuts the connection from this validator to the orchestrator."""

    async def down(*_: object, **__: object) -> httpx.Response:
        raise Unavailable("no route to the orchestrator", code="unreachable")

    for client in (validator.dependencies.remote.reader, validator.dependencies.remote.writer):
        client.call = down  # type: ignore[assignment,method-assign]


@dataclass(frozen=True)
class Sickness:
    """A fault of a validator and the error code that it reports."""

    breaks: Callable[[ValidatorUnderTest], None]
    code: str | None
    host: Callable[[datetime], Host] = lambda _now: Host()
    settings: dict[str, Any] | None = None


SICKNESSES = {
    "no-sandbox": Sickness(broken("no-sandbox"), "no-sandbox"),
    "examiners-die": Sickness(broken("examiner-died", retryable=False), "examiner-died"),
    "examiner-crashes": Sickness(crashes, "examiner-failed"),
    "memory-gone": Sickness(broken("out-of-memory"), "out-of-memory"),
    "disk-full": Sickness(nothing, "disk-full", settings={"reserve_bytes": 1 << 60}),
    "disk-gone": Sickness(loses_its_folder, "disk-trouble"),
    "no-policies-folder": Sickness(
        broken("no-policy", tested=False), "no-policies-folder", settings={"policies": "nowhere"}
    ),
    "clock-an-hour-behind": Sickness(nothing, "clock", host=wrong_clock),
    "chain-unreachable": Sickness(
        nothing, "chain-unavailable", host=lambda _now: Host(chain_url="http://127.0.0.1:9/")
    ),
    "orchestrator-unreachable": Sickness(reaches_no_orchestrator, "unreachable"),
    "store-unreachable": Sickness(reaches_no_store, FAILS),
    "no-policy": Sickness(broken("no-policy", tested=False), FAILS),
    "no-calibration": Sickness(broken("no-calibration", tested=False, retryable=False), None),
}


async def rounds(pool: PoolWithValidators, *validators: ValidatorUnderTest, count: int, pause_s: float = 2) -> set[str]:
    """Runs each validator in turn repeatedly; an error of one does not stop the others.

    Returns:
        The error codes that the first validator reported as its condition.
    """
    had = set()
    for _ in range(count):
        for each in validators:
            with suppress(MusterError):
                await each.judge()
        had.add(validators[0].dependencies.health.condition.code)
        await pool.turn(timedelta(seconds=pause_s))
    return had


async def judged(pool: PoolWithValidators) -> list[Digest]:
    ledger = await pool.ledger()
    return sorted(given.key for given in await ledger.history(VerdictGiven, pool_id=POOL))


@pytest.mark.parametrize("name", SICKNESSES)
async def test_a_healthy_validator_judges_everything_beside_an_unhealthy_one_and_nothing_is_parked(
    pool: PoolWithValidators, name: str
) -> None:
    sickness = SICKNESSES[name]
    settings: dict[str, Any] = {"attempts": 2, "in_hand": 2, **(sickness.settings or {})}
    sick = pool.validator(host=sickness.host(pool.run.pool.clock.now()), **settings)
    well = pool.validator("second", attempts=2)
    await rounds(pool, sick, well, count=1)
    sickness.breaks(sick)
    keys = sorted([await pool.submit() for _ in range(WORKS)])
    await pool.turn(timedelta(seconds=6))  # the self-test that it passed earlier no longer counts
    had = await rounds(pool, sick, well, count=6)
    assert await judged(pool) == keys, "every work, and none twice"
    assert {(await pool.work(key)).outcome for key in keys} == {Outcome.ACCEPTED}
    assert {(await pool.work(key)).judge for key in keys} == {well.key.address}
    lengths = await well.dependencies.queue.lengths()
    assert (lengths.waiting, lengths.ready, lengths.in_hand, lengths.parked) == (0, 0, 0, 0)
    assert had - {""} == ({sickness.code} if sickness.code else set())
    await well.dependencies.health.check()
    if sickness.code in {None, FAILS}:
        return  # it tries one more item now and then, and its self-test finds no error
    with pytest.raises(ValidatorUnhealthy, match=sickness.code):
        await sick.dependencies.health.check()
    shown = {each["place"].partition(":")[2]: each for each in (await well.status())["members"]}
    told = shown[str(sick.dependencies.settings.directory)]
    assert (told["state"], told["code"], told["is_this"]) == ("unwell", sickness.code, False)
    assert told["why"]


async def test_an_unhealthy_validator_alone_parks_nothing_and_resumes_when_repaired(pool: PoolWithValidators) -> None:
    validator = pool.validator(attempts=2)
    broken("no-sandbox")(validator)
    key = await pool.submit()
    await rounds(pool, validator, count=30, pause_s=10)
    assert validator.examiner.asked == [], "it tested itself before it took any work"
    assert (await validator.status())["members"][0]["hint"] == "mend it"
    assert validator.dependencies.health.condition.tests > 1
    validator.examiner.broken = None
    validator.examiner.otherwise = type(validator.examiner)().otherwise
    await rounds(pool, validator, count=2, pause_s=15)
    assert (await pool.work(key)).outcome is Outcome.ACCEPTED
    assert validator.dependencies.health.well


async def test_a_file_that_crashes_examiners_stops_no_validator_and_is_parked(pool: PoolWithValidators) -> None:
    both = [pool.validator(), pool.validator("second")]
    await rounds(pool, *both, count=1)
    poison, *others = [await pool.submit() for _ in range(4)]
    for each in both:
        each.examiner.answers[poison] = NotJudged(code="examiner-died", why="3 ended over it", retryable=False)
    await rounds(pool, *both, count=4)
    assert await judged(pool) == sorted(others)
    assert all(each.dependencies.health.well for each in both)
    [item] = (await both[0].get("/v1/parked")).json()["items"]
    assert (item["key"], item["code"]) == (poison, "examiner-died")
    asked = [sum(one.facts.work.key == poison for one in each.examiner.asked) for each in both]
    assert asked == [1, 1]


async def test_files_that_fail_everywhere_do_not_pause_two_validators_at_once(pool: PoolWithValidators) -> None:
    both = [pool.validator(attempts=100), pool.validator("second", attempts=100)]
    for each in both:
        each.examiner.otherwise = NotJudged(code="examiner-failed", why="a crafted file", retryable=True)
    for _ in range(3):
        await pool.submit()
    honest: list[Digest] = []
    for _ in range(3):
        await rounds(pool, *both, count=1)
        assert any(each.dependencies.health.well for each in both), "the last available validator never pauses"
        honest.append(await pool.submit())
        for each in both:
            each.examiner.answers[honest[-1]] = type(each.examiner)().otherwise
    await rounds(pool, *both, count=2)
    assert await judged(pool) == sorted(honest)


async def test_work_of_a_validator_that_cannot_continue_is_given_to_the_other(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, well = pool.validator(), pool.validator("second")
    key = await pool.submit()
    await cut.read()
    await cut.loops.judging.round()  # its verdict is staged, and waits for a sender

    async def down(*_: object) -> None:
        raise ChainUnavailable("no route from here")

    with monkeypatch.context() as patch:
        patch.setattr(await cut.dependencies.chain.ledger(), "now", down)
        patch.setattr(cut.dependencies.chain, "check", down)
        assert not await cut.dependencies.health.recheck()
        for _ in range(5):
            await pool.turn(timedelta(seconds=10))
            await cut.dependencies.held.renew()
            await rounds(pool, well, count=1)
            with suppress(MusterError):
                await cut.read()
    assert (await pool.work(key)).judge == well.key.address
    await cut.loops.verdict_senders[0].round()
    assert await judged(pool) == [key], "the late verdict is looked up, and dropped"


async def test_a_validator_that_cannot_finalise_leaves_it_to_the_other(
    pool: PoolWithValidators, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor, well = pool.validator(), pool.validator("second")
    key = await pool.submit()
    await rounds(pool, well, count=1)
    await pool.world.warp(timedelta(hours=2, seconds=2))

    async def down(*_: object) -> None:
        raise ChainUnavailable("no route from here")

    ledger: Ledger = await poor.dependencies.chain.ledger()
    monkeypatch.setattr(ledger, "now", down)
    with pytest.raises(ChainUnavailable):
        await poor.loops.finalising.round()
    assert await well.loops.finalising.round() == 1
    assert (await pool.work(key)).status is WorkStatus.FINAL


async def test_two_validators_that_lose_redis_lose_no_work_and_give_no_second_verdict(pool: PoolWithValidators) -> None:
    both = [pool.validator(), pool.validator("second")]
    keys = [await pool.submit() for _ in range(3)]
    await rounds(pool, *both, count=1)
    keys.append(await pool.submit())
    await both[0].read()
    held = await both[0].dependencies.queue.take()
    assert held is not None
    await both[0].dependencies.redis.flushdb()
    keys.append(await pool.submit())
    await rounds(pool, *reversed(both), count=2)
    assert not await both[0].dependencies.queue.done(held), "its former leases are void"
    assert await judged(pool) == sorted(keys)
    assert [each["state"] for each in (await both[0].status())["members"]] == ["well", "well"]


Stop = Callable[[ValidatorUnderTest], Awaitable[None]]


async def test_no_validator_waits_for_one_that_has_stopped(pool: PoolWithValidators) -> None:
    leaving, alone = pool.validator(), pool.validator("second")
    for each in (leaving, alone):
        await each.read()
    assert await alone.dependencies.members.others_may_judge()
    await leaving.dependencies.members.leave()
    assert not await alone.dependencies.members.others_may_judge()
    await leaving.read()
    await pool.turn(timedelta(minutes=1, seconds=1))
    assert not await alone.dependencies.members.others_may_judge(), "also not for one that was killed, after a minute"
    states = [each["state"] for each in (await alone.status())["members"]]
    assert sorted(states) == ["silent", "silent"]
    await pool.turn(timedelta(hours=2))
    await alone.read()
    assert [each["state"] for each in (await alone.status())["members"]] == ["well"]
