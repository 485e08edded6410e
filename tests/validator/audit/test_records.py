"""Verdict records of nodes, on a real Redis."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from redis.asyncio import Redis

from protocol.identifiers import address, digest
from protocol.redis.connection import RedisKeys
from protocol.verdicts import Outcome
from validator.audit.rate import NEW, AuditRecord
from validator.store.records import MOST_FORGERIES, MOST_RECENT, Judged, NodeRecords

KEYS = RedisKeys("validator-1")
ME, OTHER, NODE = (address("0x" + each * 20) for each in ("11", "22", "33"))
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def said(number: int, outcome: Outcome = Outcome.ACCEPTED, *, own: bool = True, about: int | None = None) -> Judged:
    """Returns the verdict in block `number` on the work of that number."""
    key = digest((number if about is None else about).to_bytes(32, "big"))
    at = NOW + timedelta(seconds=number)
    return Judged(key=key, outcome=outcome, own=own, at=at, place=(number, 0))


async def test_a_record_counts_own_clean_verdicts_and_failures_found_by_any_validator(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    assert await records.of(NODE) == NEW
    await records.note(NODE, [said(1), said(2), said(3, own=False)])
    assert await records.of(NODE) == AuditRecord(clean=2)
    await records.note(NODE, [said(4, Outcome.REJECTED, own=False)])
    await records.note(NODE, [said(5)])
    assert await records.of(NODE) == AuditRecord(clean=1, failed_at=NOW + timedelta(seconds=4))
    # other validators keep their own records
    assert await NodeRecords(redis, keys=KEYS, validator=OTHER).of(NODE) == NEW


async def test_replayed_events_change_nothing(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    every = [said(number) for number in range(3 * MOST_RECENT)]
    await records.note(NODE, every)
    await records.note(NODE, every[5:])
    await records.note(NODE, every)
    assert await records.of(NODE) == AuditRecord(clean=3 * MOST_RECENT)


async def test_a_failure_overturned_by_a_dispute_is_forgotten(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    await records.note(NODE, [said(1), said(2, Outcome.FORGED, own=False), said(3)])
    assert (await records.of(NODE)).clean == 1
    await records.note(NODE, [said(4, own=False, about=2)])
    assert await records.of(NODE) == AuditRecord(clean=2)


async def test_a_forgery_counts_against_all_nodes_of_the_provider_until_a_dispute_overturns_it(
    redis: Redis,
) -> None:
    records, provider = NodeRecords(redis, keys=KEYS, validator=ME), OTHER
    await records.note(NODE, [said(number) for number in range(1, 11)])
    forged = said(20, Outcome.FORGED, own=False)
    for _ in range(2):  # events may be replayed
        await records.note_provider(provider, [forged])
    assert await records.of(NODE) == AuditRecord(clean=10)
    suspect = AuditRecord(clean=0, provider_forged_at=forged.at)
    assert await records.of(NODE, provider=provider) == suspect
    await records.note(NODE, [said(19), *(said(number) for number in range(21, 24))])
    assert await records.of(NODE, provider=provider) == replace(suspect, clean=3)  # earlier verdicts do not count
    # Its own failure counts if it is newer, and enough clean verdicts of its own end it.
    await records.note(NODE, [said(30, Outcome.REJECTED)])
    assert await records.of(NODE, provider=provider) == AuditRecord(failed_at=NOW + timedelta(seconds=30))
    await records.note_provider(provider, [said(40, Outcome.FORGED, about=5)])
    assert (await records.of(NODE, provider=provider)).provider_forged_at == NOW + timedelta(seconds=40)
    await records.note_provider(provider, [said(50, Outcome.REJECTED, about=5)])
    assert (await records.of(NODE, provider=provider)).provider_forged_at is None
    await records.note_provider(provider, [said(60, Outcome.FORGED)])
    await records.note(NODE, [said(number) for number in range(61, 61 + MOST_RECENT)])
    assert (await records.of(NODE, provider=provider)).provider_forged_at is None


async def test_the_number_of_remembered_forgeries_is_bounded_and_the_newest_counts(redis: Redis) -> None:
    records, provider = NodeRecords(redis, keys=KEYS, validator=ME), OTHER
    count = MOST_FORGERIES + 5
    await records.note_provider(provider, [said(number, Outcome.FORGED) for number in range(count)])
    (name,) = await redis.keys("*forgeries*")
    assert await redis.hlen(name) == MOST_FORGERIES
    assert (await records.of(NODE, provider=provider)).provider_forged_at == NOW + timedelta(seconds=count - 1)


async def test_records_written_by_an_earlier_release_are_readable(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    await records.note(NODE, [said(1), said(2)])
    (name,) = await redis.keys("*record*")
    old = json.loads(await redis.get(name) or "")
    old["recent"] = [each[:3] for each in old["recent"]]
    await redis.set(name, json.dumps(old))
    assert await records.of(NODE) == AuditRecord(clean=2)


async def test_an_acceptance_overturned_by_a_dispute_is_a_failure(redis: Redis) -> None:
    records = NodeRecords(redis, keys=KEYS, validator=ME)
    await records.note(NODE, [said(1), said(2), said(3)])
    await records.note(NODE, [said(4, Outcome.FORGED, own=False, about=1)])
    record = await records.of(NODE)
    assert record.failed_at == NOW + timedelta(seconds=4)
    await records.note(NODE, [said(5)])
    assert (await records.of(NODE)).failed_at is not None
