"""Nodes' records, on a real Redis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from redis.asyncio import Redis

from protocol.identifiers import address, digest
from protocol.redis import RedisKeys
from protocol.verdicts import Outcome
from validator.audit.rate import NEW, NodeRecord
from validator.store.records import MOST_RECENT, Judged, NodeRecords

KEYS = RedisKeys("validator-1")
ME, OTHER, NODE = (address("0x" + each * 20) for each in ("11", "22", "33"))
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def said(number: int, outcome: Outcome = Outcome.ACCEPTED, *, own: bool = True, about: int | None = None) -> Judged:
    """The verdict in block `number`, about work of that number."""
    key = digest((number if about is None else about).to_bytes(32, "big"))
    at = NOW + timedelta(seconds=number)
    return Judged(key=key, outcome=outcome, own=own, at=at, place=(number, 0))


async def test_own_clean_verdicts_and_anybodys_failures_make_a_record(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    assert await records.of(NODE) == NEW
    await records.note(NODE, [said(1), said(2), said(3, own=False)])
    assert await records.of(NODE) == NodeRecord(clean=2)
    await records.note(NODE, [said(4, Outcome.REJECTED, own=False)])
    await records.note(NODE, [said(5)])
    assert await records.of(NODE) == NodeRecord(clean=1, failed_at=NOW + timedelta(seconds=4))
    assert await NodeRecords(redis, keys=KEYS, validator=OTHER).of(NODE) == NEW  # others keep their own


async def test_events_that_come_again_change_nothing(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    every = [said(number) for number in range(3 * MOST_RECENT)]
    await records.note(NODE, every)
    await records.note(NODE, every[5:])
    await records.note(NODE, every)
    assert await records.of(NODE) == NodeRecord(clean=3 * MOST_RECENT)


async def test_a_failure_that_a_dispute_undid_is_forgotten(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    await records.note(NODE, [said(1), said(2, Outcome.FORGED, own=False), said(3)])
    assert (await records.of(NODE)).clean == 1
    await records.note(NODE, [said(4, own=False, about=2)])
    assert await records.of(NODE) == NodeRecord(clean=2)


async def test_an_acceptance_that_a_dispute_undid_is_a_failure(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    await records.note(NODE, [said(1), said(2), said(3)])
    await records.note(NODE, [said(4, Outcome.FORGED, own=False, about=1)])
    record = await records.of(NODE)
    assert record.failed_at == NOW + timedelta(seconds=4)
    await records.note(NODE, [said(5)])
    assert (await records.of(NODE)).failed_at is not None
