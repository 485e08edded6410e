"""Where listed work can be read: its file, and the audit file of its verdict."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from orchestrator.runs.chain import WorkEvent
from orchestrator.runs.slots import Happening
from orchestrator.storage import StorageUnavailable
from protocol.identifiers import Address, Digest, digest
from protocol.leases import Work
from protocol.verdicts import Outcome
from protocol.wire.leases import SignedWork
from protocol.wire.uploads import ObjectKey
from tests.orchestrator.edge import POOL
from tests.orchestrator.runs.edge import VALIDATOR, RunUnderTest

FILE, AUDIT = b"rollouts", b"reasons"


def sha256(content: bytes) -> Digest:
    return digest(hashlib.sha256(content).digest())


async def put(run: RunUnderTest, owner: Address, content: bytes, *, audit: bool) -> None:
    key = ObjectKey(pool_id=POOL, owner=owner, sha256=sha256(content), audit=audit)
    ticket = await run.pool.parts.objects.presign_put(
        key, size=len(content), content_type="application/octet-stream", expires=timedelta(minutes=1)
    )
    async with run.pool.http() as http:
        answer = await http.put(_local(ticket.url), content=content, headers=dict(ticket.headers))
    assert answer.status_code < 300, answer.text


async def get(run: RunUnderTest, url: str) -> bytes:
    async with run.pool.http() as http:
        return (await http.get(_local(url))).content


def _local(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


async def judged(run: RunUnderTest) -> dict[str, Any]:
    """Work that was uploaded, delivered and accepted; as it is listed."""
    key = await run.member()
    grant = await run.lease(key)
    words = Work(lease_hash=grant.lease.lease.hash, sha256=sha256(FILE), units=7)
    signature = "0x" + words.sign(key, grant.lease.domain).hex()
    await put(run, key.address, FILE, audit=False)
    await run.hand_in(key, SignedWork(lease=grant.lease, sha256=sha256(FILE), units=7, signature=signature))
    await run.relayer.round()
    await put(run, VALIDATOR.address, AUDIT, audit=True)
    run.chain.happen(grant.lease.lease.key.hash, key.address, Happening.JUDGED, Outcome.ACCEPTED)
    verdict = run.chain.happened[-1]
    assert isinstance(verdict, WorkEvent)
    run.chain.happened[-1] = replace(verdict, judge=VALIDATOR.address, audit_hash=sha256(AUDIT))
    await run.sync.round()
    [item] = await run.rollouts()
    return dict(item)


async def test_listed_work_carries_links_to_its_file_and_its_audit_file(run: RunUnderTest) -> None:
    item = await judged(run)
    assert item["size"] == len(FILE)
    assert await get(run, item["file_url"]) == FILE
    assert await get(run, item["audit_url"]) == AUDIT


async def test_a_store_that_is_down_costs_the_links_and_not_the_list(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_: ObjectKey) -> None:
        raise StorageUnavailable("the store is down")

    before = await judged(run)
    monkeypatch.setattr(run.pool.parts.objects, "head", down)
    [item] = await run.rollouts()
    assert item == before | {"size": None, "file_url": None, "audit_url": None}
