"""Cached look-ups: shared, bounded, and paused while a source is down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from protocol.errors import Forbidden, NotFound, RateLimited, Unavailable
from protocol.http.lookups import LookupLimits, Lookups
from protocol.runtime.clock import ManualClock

LIMITS = LookupLimits(at_once=2, waiting=3, remembered=3)


@dataclass
class Source:
    answers: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    most_at_once: int = 0
    _now: int = 0

    async def read(self, key: str) -> int:
        self.asked.append(key)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            await self.open.wait()
        finally:
            self._now -= 1
        if self.error is not None:
            raise self.error
        return self.answers.get(key, 0)


@pytest.fixture
def source() -> Source:
    source = Source()
    source.open.set()
    return source


@pytest.fixture
def lookups(source: Source, clock: ManualClock) -> Lookups[str, int]:
    return Lookups(
        source.read,
        what=lambda key: f"reading {key}",
        fresh=lambda _: timedelta(seconds=10),
        stale=timedelta(seconds=100),
        clock=clock,
        limits=LIMITS,
    )


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_answer_is_cached_while_fresh_and_read_again_after_forget(
    lookups: Lookups[str, int], source: Source, clock: ManualClock
) -> None:
    for _ in range(3):
        assert await lookups.get("a") == 0
    assert source.asked == ["a"]
    source.answers["a"] = 1
    await clock.turn(timedelta(seconds=11))
    assert await lookups.get("a") == 1
    source.answers["a"] = 2
    lookups.forget("a")
    assert lookups.known("a") is None
    assert await lookups.get("a") == 2


async def test_callers_of_one_key_share_a_read_and_parallel_reads_are_limited(
    lookups: Lookups[str, int], source: Source
) -> None:
    source.open.clear()
    calls = [asyncio.create_task(lookups.get(key)) for key in "aaaaaabc"]
    await settle()
    assert source.asked == ["a", "b"]
    with pytest.raises(RateLimited):
        await lookups.get("d")
    source.open.set()
    await asyncio.gather(*calls)
    assert sorted(source.asked) == ["a", "b", "c"]
    assert source.most_at_once == LIMITS.at_once
    assert await lookups.get("d") == 0


async def test_reads_of_new_keys_do_not_delay_cached_ones(
    lookups: Lookups[str, int], source: Source, clock: ManualClock
) -> None:
    await lookups.get("known")
    await clock.turn(timedelta(seconds=11))
    source.open.clear()
    crowd = [asyncio.create_task(lookups.get(str(number))) for number in range(LIMITS.waiting)]
    await settle()
    asking = asyncio.create_task(lookups.get("known"))
    await settle()
    assert source.asked[-1] == "known"
    assert await lookups.get("known") == 0  # a read is in progress, and the last answer is young enough
    source.open.set()
    await asyncio.gather(asking, *crowd)


async def test_a_failing_source_is_paused_and_the_last_answer_is_used_longer(
    lookups: Lookups[str, int], source: Source, clock: ManualClock
) -> None:
    await lookups.get("a")
    await lookups.get("b")
    source.error = Unavailable("down")
    await clock.turn(timedelta(seconds=50))
    for _ in range(5):
        assert await lookups.get("a") == 0
    assert source.asked.count("a") == 2
    assert await lookups.get("b") == 0  # each key with a cached answer has its own pause
    assert source.asked.count("b") == 2
    for key in ("x", "y"):  # new keys share one pause
        with pytest.raises(Unavailable):
            await lookups.get(key)
    assert "y" not in source.asked
    await clock.turn(timedelta(seconds=60))
    with pytest.raises(Unavailable):
        await lookups.get("a")
    source.error = None
    await clock.turn(timedelta(seconds=3))
    assert await lookups.get("a") == 0


async def test_a_refusal_is_passed_on_and_causes_no_pause(lookups: Lookups[str, int], source: Source) -> None:
    source.error = Forbidden("no")
    for _ in range(2):
        with pytest.raises(Forbidden):
            await lookups.get("a")
    assert source.asked == ["a", "a"]


async def test_a_stalled_read_times_out_and_delays_no_other_key(
    lookups: Lookups[str, int], source: Source, clock: ManualClock
) -> None:
    source.open.clear()
    asking = asyncio.create_task(lookups.get("a"))
    await settle()
    await clock.turn(LIMITS.answer)
    with pytest.raises(Unavailable):
        await asking
    await settle()
    source.open.set()
    assert await lookups.get("b") == 0


async def test_the_number_of_simultaneous_callers_is_bounded(lookups: Lookups[str, int], source: Source) -> None:
    found = await asyncio.gather(*(lookups.get(str(number)) for number in range(50)), return_exceptions=True)
    assert sum(isinstance(each, RateLimited) for each in found) == 50 - LIMITS.waiting
    assert len(source.asked) == LIMITS.waiting


async def test_a_read_that_began_before_forget_is_not_cached(lookups: Lookups[str, int], source: Source) -> None:
    source.open.clear()
    asking = asyncio.create_task(lookups.get("a"))
    await settle()
    lookups.forget("a")
    source.open.set()
    await asking
    assert lookups.known("a") is None


async def test_the_number_of_cached_answers_is_bounded(lookups: Lookups[str, int]) -> None:
    for number in range(5):
        await lookups.get(str(number))
    assert [lookups.known(str(number)) for number in range(5)] == [None, None, 0, 0, 0]


async def test_an_unknown_key_is_not_read_again_for_a_short_time(
    lookups: Lookups[str, int], source: Source, clock: ManualClock
) -> None:
    source.error = NotFound("no such key")
    for _ in range(3):
        with pytest.raises(NotFound):
            await lookups.get("a")
    assert source.asked == ["a"]
    for number in range(10):  # the cache of unknown keys is bounded, and separate from that of answers
        with pytest.raises(NotFound):
            await lookups.get(f"unknown {number}")
    assert len(lookups._absent) == LIMITS.remembered
    with pytest.raises(NotFound):
        await lookups.get("unknown 9")
    source.asked.clear()
    source.error = None
    await clock.turn(LIMITS.absent)
    assert await lookups.get("unknown 9") == 0
    source.error = NotFound("gone")
    await clock.turn(timedelta(seconds=11))
    for _ in range(3):
        with pytest.raises(NotFound):
            await lookups.get("unknown 9")
    assert source.asked == ["unknown 9", "unknown 9"]
    source.error = None
    lookups.forget("unknown 9")
    assert await lookups.get("unknown 9") == 0


async def test_unknown_keys_evict_no_kept_key_and_the_most_recently_used_stays(lookups: Lookups[str, int]) -> None:
    await lookups.get("member")
    lookups.keep("member")
    await lookups.get("often")
    for number in range(10):
        await lookups.get(str(number))
        await lookups.get("often")
    assert (lookups.known("member"), lookups.known("often")) == (0, 0)
    assert [lookups.known(str(number)) for number in range(10)] == [None] * 8 + [0, 0]
    for number in range(LIMITS.remembered):  # protected answers are bounded, too
        await lookups.get(f"member {number}")
        lookups.keep(f"member {number}")
    assert lookups.known("member") is None
    lookups.forget("member 0")
    lookups.keep("member 0")
    assert lookups.known("member 0") is None
