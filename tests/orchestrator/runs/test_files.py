"""Download links in listings of work: to the rollout file and to the audit file."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from ledger.client.event_follower import ObservedEvent
from ledger.events.types import VerdictGiven
from orchestrator.domain.slots import SlotEvent
from orchestrator.storage import StorageUnavailable
from protocol.identifiers import Address, Digest, digest
from protocol.identity.keys import Key
from protocol.leases import WorkClaim
from protocol.verdicts import Outcome
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import POOL
from tests.kit.memory_run_ledger import VALIDATOR, RunUnderTest
from tests.kit.runs import MakeRun

FILE, AUDIT = b"rollouts", b"reasons"


def sha256(content: bytes) -> Digest:
    return digest(hashlib.sha256(content).digest())


async def put(run: RunUnderTest, owner: Address, content: bytes, *, audit: bool) -> None:
    key = ObjectKey(pool_id=POOL, owner=owner, sha256=sha256(content), audit=audit)
    ticket = await run.pool.dependencies.objects.presign_put(
        key, size=len(content), content_type="application/octet-stream", expires=timedelta(minutes=1)
    )
    async with run.pool.http() as http:
        answer = await http.put(_local(ticket.url), content=content, headers=dict(ticket.headers))
    assert answer.status_code < 300, answer.text


async def get(run: RunUnderTest, url: str) -> bytes:
    async with run.pool.http() as http:
        return (await http.get(_local(url))).content


def _local(url: str) -> str:
    url_parts = urlsplit(url)
    return f"{url_parts.path}?{url_parts.query}"


async def judged(run: RunUnderTest) -> dict[str, Any]:
    """Adds work that was uploaded, submitted and accepted; returns its listing."""
    key = await run.member()
    grant = await run.lease(key)
    words = WorkClaim(lease_hash=grant.lease.lease.hash, sha256=sha256(FILE), units=7)
    signature = "0x" + words.sign(key, grant.lease.domain).hex()
    await put(run, key.address, FILE, audit=False)
    await run.hand_in(key, SignedWorkClaim(lease=grant.lease, sha256=sha256(FILE), units=7, signature=signature))
    await run.relayer.round()
    await put(run, VALIDATOR.address, AUDIT, audit=True)
    run.chain.happen(grant.lease.lease.key.hash, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    verdict = run.chain.happened[-1].event
    assert isinstance(verdict, VerdictGiven)
    run.chain.happened[-1] = ObservedEvent(replace(verdict, audit_hash=sha256(AUDIT)))
    await run.sync.round()
    [item] = await run.rollouts()
    return dict(item)


async def test_listed_work_carries_links_to_its_file_and_its_audit_file(run: RunUnderTest) -> None:
    item = await judged(run)
    assert item["size"] == len(FILE)
    assert await get(run, item["file_url"]) == FILE
    assert await get(run, item["audit_url"]) == AUDIT


async def test_while_the_store_is_down_work_is_listed_without_links(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_: ObjectKey) -> None:
        raise StorageUnavailable("the store is down")

    before = await judged(run)
    monkeypatch.setattr(run.pool.dependencies.objects, "head", down)
    [item] = await run.rollouts()
    assert item == before | {"size": None, "file_url": None, "audit_url": None}


async def test_a_validator_can_read_one_work_by_its_key_and_its_node_cannot(run: RunUnderTest) -> None:
    item = await judged(run)
    path = f"/v1/run/rollouts/{item['key']}"
    link = ("file_url", "audit_url")
    answer = await run.pool.send_unsigned_answer(VALIDATOR, path)
    assert {k: v for k, v in answer.json().items() if k not in link} == {k: v for k, v in item.items() if k not in link}
    assert (await run.pool.send_unsigned_answer(Key.generate(), path)).status_code == 403
    unknown = await run.pool.send_unsigned_answer(VALIDATOR, f"/v1/run/rollouts/{sha256(b'other')}")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not-found")


async def test_role_holders_have_a_higher_request_rate_than_nodes(make_run: MakeRun) -> None:
    run = make_run(node_rate_per_s=1, node_burst=2, role_rate_per_s=1, role_burst=5)
    await run.sync.round()
    for who, first_refused in ((VALIDATOR, 5), (await run.pool.member(), 1)):  # its heartbeat counts towards the rate
        path = "/v1/run/rollouts?status=all" if who is VALIDATOR else "/v1/nodes/me"
        statuses = [(await run.pool.send_unsigned_answer(who, path)).status_code for _ in range(6)]
        assert statuses == [200] * first_refused + [429] * (6 - first_refused)
