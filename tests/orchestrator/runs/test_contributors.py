"""The API of the contributors' page: logins, sessions, what a provider reads, and what it can't read."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from orchestrator.domain.slots import SlotEvent
from orchestrator.storage import ObjectFacts
from orchestrator.store.sessions import LOGIN_LIFE, MOST_SESSIONS, SESSION_LIFE
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import PROVIDER
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.orchestrator import TOKEN
from tests.kit.page_world import judge


async def worked(run: RunUnderTest) -> tuple[Key, Digest]:
    key = await run.member()
    return key, await run.delivered(key, await run.lease(key, groups=1))


async def code(run: RunUnderTest, key: Key) -> str:
    answer = await run.pool.send(key, "/v1/me/logins", None)
    assert answer.status_code == 200, answer.text
    assert answer.json()["provider"] == PROVIDER.address
    page, _, found = answer.json()["url"].partition("#login=")
    assert page == "http://127.0.0.1:8002/me/"
    return str(found)


async def begin(run: RunUnderTest, text: str) -> httpx.Response:
    async with run.pool.http() as http:
        return await http.post("/v1/me/sessions", json={"code": text})


async def token(run: RunUnderTest, key: Key) -> str:
    answer = await begin(run, await code(run, key))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


async def ask(run: RunUnderTest, session: str, path: str = "", *, method: str = "GET") -> httpx.Response:
    async with run.pool.http() as http:
        return await http.request(method, f"/v1/me{path}", headers={"Authorization": f"Bearer {session}"})


async def test_node_and_provider_log_in_and_strangers_do_not(run: RunUnderTest) -> None:
    key, work = await worked(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    for signer in (key, PROVIDER):
        found = (await ask(run, await token(run, signer))).json()
        assert (found["provider"], [each["address"] for each in found["nodes"]]) == (PROVIDER.address, [key.address])
        assert (found["verdicts"]["accepted"], found["nodes"][0]["verdicts"]["accepted"]) == (1, 1)
        assert found["accepted_not_final"] == "0.000000000000000007"
        assert (found["claimable"], found["stake"]["free"], found["stake"]["unbonding"]) == ("1", "25", "3")
        assert found["challenge_period_s"] == 3600
    for path in ("/v1/me/logins", "/v1/me/logins/revoke"):
        refused = await run.pool.send(Key.generate(), path, None)
        assert (refused.status_code, refused.json()["code"]) == (403, "unknown-contributor")
        async with run.pool.http() as http:
            assert (await http.post(path)).status_code == 401
            assert (await http.post(path, headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 401


async def test_a_code_works_once_for_five_minutes_and_the_newest_replaces_it(run: RunUnderTest) -> None:
    key, _ = await worked(run)
    first, second = await code(run, key), await code(run, key)
    assert (await begin(run, first)).json()["code"] == "bad-login", "the second code replaced it"
    assert (await begin(run, second)).status_code == 201
    assert (await begin(run, second)).json()["code"] == "bad-login"
    redis = run.pool.dependencies.redis
    third = await code(run, key)
    lives = [await redis.pttl(name) for name in await redis.keys("*:login*")]
    assert len(lives) == 2
    assert all(0 < life <= LOGIN_LIFE / timedelta(milliseconds=1) for life in lives)
    stored = repr([(name, await redis.get(name)) for name in await redis.keys("*:login*")])
    assert third not in stored, "only its hash is stored"
    for text, status in (("", 422), ("mlc_" + "a" * 44, 422), ("x" * 2000, 413)):
        assert (await begin(run, text)).status_code == status


async def test_sessions_end_by_time_by_log_out_by_revocation_and_by_number(run: RunUnderTest) -> None:
    key, _ = await worked(run)
    sessions = [await token(run, key) for _ in range(MOST_SESSIONS)]
    assert {(await ask(run, each)).status_code for each in sessions} == {200}
    assert (await ask(run, sessions[0], "/session", method="DELETE")).status_code == 204
    assert (await ask(run, sessions[0])).json()["code"] == "bad-session"
    await run.pool.clock.turn(timedelta(seconds=1))
    more = [await token(run, PROVIDER) for _ in range(3)]
    open_now = [(await ask(run, each)).status_code for each in [*sessions, *more]]
    assert open_now.count(200) == MOST_SESSIONS
    assert open_now[-3:] == [200] * 3, "a further session ends the one that would end first"
    unused = await code(run, key)
    answer = await run.pool.send(key, "/v1/me/logins/revoke", None)
    assert answer.json() == {"ended": MOST_SESSIONS}
    assert (await begin(run, unused)).status_code == 401, "revocation also ends unused links"
    assert {(await ask(run, each)).status_code for each in [*sessions, *more]} == {401}
    late = await token(run, key)
    await run.pool.clock.turn(SESSION_LIFE)
    assert (await ask(run, late)).json()["code"] == "bad-session"


async def test_a_session_reads_only_its_providers_work_and_nothing_of_the_owners(run: RunUnderTest) -> None:
    key, work = await worked(run)
    other, theirs = await worked(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.REJECTED)
    await run.sync.round()
    row = await run.leasing.store.slot_of(theirs)
    assert row is not None
    name = run.pool.dependencies.database.key("run", "slot", row.id)
    await run.pool.dependencies.redis.hset(name, "provider", Key.generate().address)
    session = await token(run, key)
    page = (await ask(run, session, "/works")).json()
    mine = next(each for each in page["works"] if each["key"] == work)
    assert (mine["outcome"], mine["status"], mine["explanation"]) == (2, "provisional", "Every check passed.")
    assert (await ask(run, session, f"/works/{theirs}/evidence")).status_code == 404
    missing = await ask(run, session, f"/works/{work}/evidence")
    assert (missing.status_code, missing.json()["detail"]) == (
        404,
        "the store does not have the audit file of this verdict",
    )
    async with run.pool.http() as http:
        for path in ("/v1/pool", "/v1/nodes", "/v1/events", f"/v1/nodes/{other.address}"):
            answer = await http.get(path, headers={"Authorization": f"Bearer {session}"})
            assert answer.status_code == 401, path
    assert (await ask(run, TOKEN)).status_code == 401, "the owner's token opens no contributor's page"


async def test_the_page_works_without_the_chain_and_is_limited_per_provider(run: RunUnderTest) -> None:
    key, _ = await worked(run)
    session = await token(run, key)
    run.pool.ledger.down = True
    found = (await ask(run, session)).json()
    assert (found["stake"], found["claimable"], found["challenge_period_s"]) == (None, None, None)
    answers = [await ask(run, session) for _ in range(run.pool.dependencies.settings.node_burst + 1)]
    assert answers[-1].status_code == 429
    assert answers[0].status_code == 200


async def test_requests_for_one_audit_file_share_a_read_and_a_provider_waits_for_one_at_a_time(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, work = await worked(run)
    judge(run, work, key, Outcome.FORGED)
    await run.sync.round()
    session = await token(run, key)
    dependencies, reads, release = run.pool.dependencies, [], asyncio.Event()
    head = dependencies.objects.head

    async def slow(wanted: ObjectKey) -> ObjectFacts | None:
        reads.append(wanted)
        await release.wait()
        return await head(wanted)

    monkeypatch.setattr(dependencies.objects, "head", slow)
    asked = [asyncio.create_task(run.pool.owner("GET", f"/v1/run/rollouts/{work}/evidence")) for _ in range(3)]
    mine = [asyncio.create_task(ask(run, session, f"/works/{work}/evidence")) for _ in range(2)]
    second = next(iter((await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED))[0])).result()
    assert (second.status_code, second.json()["code"]) == (429, "rate-limited")
    release.set()
    assert len({each["audit_hash"] for each in await asyncio.gather(*asked)}) == 1
    assert sorted(each.status_code for each in await asyncio.gather(*mine)) == [200, 429]
    assert len(reads) == 1


@pytest.mark.parametrize("spoilt", ["hash", "size", "json"])
async def test_an_audit_file_that_lies_is_not_shown(run: RunUnderTest, spoilt: str) -> None:
    key, work = await worked(run)
    judge(run, work, key, Outcome.FORGED)
    await run.sync.round()
    session = await token(run, key)
    row = await run.leasing.store.slot_of(work)
    assert row is not None
    path = next(run.pool.dependencies.settings.storage_directory.rglob(f"*{row.audit_hash[2:]}*"))
    content = path.read_bytes()
    if spoilt == "json":
        good: dict[str, Any] = (await ask(run, session, f"/works/{work}/evidence")).json()
        finding = good["findings"][0]
        assert (finding["check"], finding["row"], finding["position"], good["outcome"]) == ("sampling", 3, 17, 3)
        assert [each["row"] for each in good["rows"]] == [3, 1], "the row with a finding comes first"
        return
    path.write_bytes(content.replace(b"42", b"41") if spoilt == "hash" else content + b" " * (9 << 20))
    answer = await ask(run, session, f"/works/{work}/evidence")
    assert answer.status_code == (404 if spoilt == "hash" else 413), answer.text
