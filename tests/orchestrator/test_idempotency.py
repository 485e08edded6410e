"""Idempotency keys of owners' requests, and preconditions of requests about tasks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from orchestrator.store.idempotency import ANSWER_KEPT, CLAIM_LIFE
from protocol.http.client import RequestSigner
from protocol.identity.keys import Key
from protocol.redis.connection import StoreUnavailable
from tests.kit.memory_ledger import MANAGER, PoolUnderTest

SPEC = {"name": "hello", "image": "python:3.11", "replicas": 1}
KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"
HOOK = {"url": "https://93.184.216.34/hook"}


async def send(
    pool: PoolUnderTest, method: str, path: str, body: Any = None, *, auth: httpx.Auth | None = None, **headers: str
) -> httpx.Response:
    """Sends a request with a token, or with `auth`; `_` in the names of headers stands for `-`."""
    token = {} if auth is not None else {"Authorization": f"Bearer {pool.token}"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with pool.http(auth) as http:
        return await http.request(method, path, json=body, headers={**token, **named})


def manager(pool: PoolUnderTest) -> RequestSigner:
    return RequestSigner(MANAGER, audience=pool.dependencies.key.address, clock=pool.clock)


async def running_node(pool: PoolUnderTest) -> Key:
    key = await pool.member()
    await pool.run(replicas=1)
    return key


@pytest.mark.parametrize(
    ("method", "path", "body", "event"),
    [
        ("POST", "/v1/tasks", {"spec": SPEC, "secrets": {"A": "hush"}}, "task.created"),
        ("PATCH", "/v1/tasks/TASK", {"spec": SPEC}, "task.changed"),
        ("POST", "/v1/webhooks", HOOK, ""),
        ("POST", "/v1/nodes/NODE/restart", None, "assignment.renewed"),
        ("POST", "/v1/nodes/NODE/drain", {"reason": "disk"}, "node.draining"),
        ("POST", "/v1/nodes/NODE/ban", {"reason": "forged"}, "node.banned"),
    ],
)
async def test_a_repeated_request_gets_the_first_answer_and_is_executed_once(
    pool: PoolUnderTest, method: str, path: str, body: Any, event: str
) -> None:
    node = await running_node(pool)
    (task,) = (await pool.owner("GET", "/v1/tasks"))["tasks"]
    path = path.replace("NODE", node.address).replace("TASK", task["id"])
    first = await send(pool, method, path, body, Idempotency_Key=KEY)
    again = await send(pool, method, path, body, Idempotency_Key=KEY)
    assert first.is_success, first.text
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert (first.headers.get("idempotent-replayed"), again.headers["idempotent-replayed"]) == (None, "true")
    kinds = [each["kind"] for each in (await pool.owner("GET", "/v1/events?limit=500"))["events"]]
    assert not event or kinds[-1] == event
    assert kinds.count(event) == (2 if event == "task.created" else int(event != ""))  # `running_node` created a task
    assert len((await pool.owner("GET", "/v1/webhooks"))["webhooks"]) == (path == "/v1/webhooks")
    redis = pool.dependencies.redis  # neither the key nor a secret of the request or of the answer is there in clear
    secret = first.json().get("secret", "hush")
    for name in await redis.keys("*:once*"):
        kept = repr(await redis.hgetall(name)) if await redis.type(name) == b"hash" else ""
        assert KEY not in repr(name) + kept
        assert secret not in kept


async def test_a_key_is_bound_to_its_caller_route_and_request(pool: PoolUnderTest) -> None:
    body = {"spec": SPEC}
    first = await send(pool, "POST", "/v1/tasks", body, Idempotency_Key=KEY)
    other = await send(pool, "POST", "/v1/tasks", {"spec": {**SPEC, "name": "other"}}, Idempotency_Key=KEY)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency-key-reused")
    assert other.json()["hint"] == "use a new random key for each request"
    mine = await send(pool, "POST", "/v1/tasks", body, auth=manager(pool), Idempotency_Key=KEY)
    assert (mine.status_code, mine.json()["id"] != first.json()["id"]) == (201, True)
    hook = await send(pool, "POST", "/v1/webhooks", HOOK, Idempotency_Key=KEY)
    assert hook.status_code == 201
    await pool.clock.turn(ANSWER_KEPT)  # the id of the task or webhook still follows from the key
    late = await send(pool, "POST", "/v1/tasks", body, Idempotency_Key=KEY)
    assert (late.json()["id"], late.headers.get("idempotent-replayed")) == (first.json()["id"], None)
    assert (await send(pool, "POST", "/v1/webhooks", HOOK, Idempotency_Key=KEY)).json() == hook.json()
    await pool.clock.turn(ANSWER_KEPT)
    changed = await send(pool, "POST", "/v1/webhooks", {**HOOK, "events": ["node."]}, Idempotency_Key=KEY)
    assert (changed.status_code, changed.json()["code"]) == (409, "idempotency-key-reused")


async def test_a_key_can_be_used_again_after_an_error_or_a_crash_but_not_meanwhile(pool: PoolUnderTest) -> None:
    path, node = "/v1/nodes/NODE/ban", await pool.member()
    path = path.replace("NODE", node.address)
    pool.ledger.down = True
    assert (await send(pool, "POST", path, {"reason": "x"}, Idempotency_Key=KEY)).status_code == 503
    pool.ledger.down, pool.ledger.stalled = False, True
    first = asyncio.create_task(send(pool, "POST", path, {"reason": "x"}, Idempotency_Key=KEY))
    while not await pool.dependencies.redis.keys("*:once:*"):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)
    meanwhile = await send(pool, "POST", path, {"reason": "x"}, Idempotency_Key=KEY)
    assert (meanwhile.status_code, meanwhile.json()["code"]) == (409, "request-in-progress")
    assert (meanwhile.headers["retry-after"], meanwhile.json()["retryable"]) == ("2", True)
    released = pool.dependencies.idempotency._settle
    pool.dependencies.idempotency._settle = None  # type: ignore[assignment,method-assign]  # the process dies
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    pool.dependencies.idempotency._settle = released  # type: ignore[method-assign]
    pool.ledger.stalled = False
    assert (await send(pool, "POST", path, {"reason": "x"}, Idempotency_Key=KEY)).status_code == 409
    await pool.clock.turn(CLAIM_LIFE)
    after = await send(pool, "POST", path, {"reason": "x"}, Idempotency_Key=KEY)
    assert (after.status_code, after.json()["state"]) == (200, "banned")


async def test_a_restart_that_was_answered_with_an_error_is_not_repeated(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: object) -> None:
        raise StoreUnavailable("Redis does not answer")

    path = f"/v1/nodes/{(await running_node(pool)).address}/restart"
    with monkeypatch.context() as broken:
        broken.setattr("orchestrator.api.nodes._view", down)
        assert (await send(pool, "POST", path, Idempotency_Key=KEY)).status_code == 503
    for key, generation in ((KEY, 2), (KEY, 2), ("another", 3), (None, 4), (None, 5)):
        repeated = send(pool, "POST", path) if key is None else send(pool, "POST", path, Idempotency_Key=key)
        answer = await repeated
        assert (answer.status_code, answer.json()["assignment"]["generation"]) == (200, generation)


@pytest.mark.parametrize(
    ("key", "status"), [("0" * 32, 201), ('"a b~"', 201), ("k" * 255, 201), ("k" * 256, 422), ("", 422), ("a\x7f", 422)]
)
async def test_any_printable_ascii_is_a_key(pool: PoolUnderTest, key: str, status: int) -> None:
    answer = await send(pool, "POST", "/v1/tasks", {"spec": SPEC}, Idempotency_Key=key)
    assert answer.status_code == status
    if status == 422:
        assert answer.json()["fields"].keys() == {"header.Idempotency-Key"}


@pytest.mark.parametrize("limit", ["MOST_ANSWERS", "MOST_BYTES"])
async def test_each_callers_oldest_answers_make_room_for_new_ones(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    big = {"spec": {**SPEC, "environment": {"A": "x" * 8_000, "B": "x" * 8_000}}}  # two of these answers fit
    monkeypatch.setattr(f"orchestrator.store.idempotency.{limit}", {"MOST_ANSWERS": 2, "MOST_BYTES": 50_000}[limit])

    async def replayed(name: str, auth: httpx.Auth | None = None) -> bool:
        answer = await send(pool, "POST", "/v1/tasks", big, auth=auth, Idempotency_Key=name)
        assert answer.status_code == 201, answer.text
        return "idempotent-replayed" in answer.headers

    assert not await replayed("mine", manager(pool))
    for name in "123":
        assert not await replayed(name)
        await pool.clock.turn(timedelta(seconds=1))
    redis = pool.dependencies.redis
    assert [await replayed(name) for name in "23"] == [True, True]
    assert not await replayed("1")  # its row was dropped, and the id that follows from the key finds the task
    assert len((await pool.owner("GET", "/v1/tasks"))["tasks"]) == 4
    assert await replayed("mine", manager(pool))
    rows = await redis.keys("*:once:*")
    answers = [await pool.dependencies.database.ask("HGET", row, "answer") for row in rows]
    assert len(answers) == 3
    assert sum(len(answer) for answer in answers) < 2 * 50_000
    (_, _) = indexes = await redis.keys("*:once-of:*")
    for key in (*rows, *indexes):
        assert 0 < await redis.pttl(key) <= ANSWER_KEPT.total_seconds() * 1000


async def test_the_number_of_requests_in_progress_is_limited(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.idempotency.MOST_ANSWERS", 1)
    path = f"/v1/nodes/{(await pool.member()).address}/ban"
    await send(pool, "GET", "/v1/webhooks", auth=manager(pool))  # the pool's roles are read before the chain stalls
    pool.ledger.stalled = True
    first = asyncio.create_task(send(pool, "POST", path, {"reason": "x"}, Idempotency_Key="1"))
    while not await pool.dependencies.redis.keys("*:once:*"):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)
    full = await send(pool, "POST", "/v1/tasks", {"spec": SPEC}, Idempotency_Key="2")
    assert (full.status_code, full.headers["retry-after"], "in progress" in full.json()["detail"]) == (429, "2", True)
    other = await send(pool, "POST", "/v1/tasks", {"spec": SPEC}, auth=manager(pool), Idempotency_Key="2")
    assert other.status_code == 201
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (await send(pool, "POST", "/v1/tasks", {"spec": SPEC}, Idempotency_Key="2")).status_code == 201


def test_every_owners_post_and_patch_takes_a_key(pool: PoolUnderTest) -> None:
    schema = pool.app.openapi()
    owned = [
        (path, operation)
        for path, item in schema["paths"].items()
        for method, operation in item.items()
        if method in {"post", "patch"} and any("token" in each for each in operation["security"])
    ]
    assert len(owned) >= 8
    for path, operation in owned:
        assert "Idempotency-Key" in {each["name"] for each in operation.get("parameters", ())}, path


# Preconditions


async def test_a_task_is_sent_again_only_if_it_has_changed(pool: PoolUnderTest) -> None:
    created = await send(pool, "POST", "/v1/tasks", {"spec": SPEC})
    path, tag = f"/v1/tasks/{created.json()['id']}", created.headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        same = await send(pool, "GET", path, If_None_Match=known)
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    await pool.member()
    await pool.scheduler.tick()  # the task's state and counts change
    changed = await send(pool, "GET", path, If_None_Match=tag)
    assert (changed.status_code, changed.json()["state"]) == (200, "running")
    assert changed.headers["etag"] != tag
    assert (await send(pool, "GET", path, If_None_Match='"x"')).status_code == 200
    assert (await send(pool, "GET", path, If_None_Match="x")).json()["code"] == "malformed-header"


async def test_a_change_applies_only_to_the_version_that_the_owner_has_read(pool: PoolUnderTest) -> None:
    created = await send(pool, "POST", "/v1/tasks", {"spec": SPEC})
    path, tag = f"/v1/tasks/{created.json()['id']}", created.headers["etag"]
    await pool.member()
    await pool.scheduler.tick()  # no change of the owner's, so the tag still matches
    first = await send(pool, "PATCH", path, {"priority": 1}, If_Match=f'"x", {tag}')
    assert (first.status_code, first.headers["etag"] != tag) == (200, True)
    for method, body in (("PATCH", {"priority": 2}), ("DELETE", None)):
        for stale in (tag, f"W/{first.headers['etag']}", '"x"'):
            late = await send(pool, method, path, body, If_Match=stale)
            assert (late.status_code, late.json()["code"]) == (412, "precondition-failed")
            assert "read the task again" in late.json()["hint"]
        broken = await send(pool, method, path, body, If_Match="tag")
        assert (broken.status_code, broken.json()["code"]) == (400, "malformed-header")
    assert (await pool.owner("GET", path))["spec"]["priority"] == 1
    assert (await send(pool, "PATCH", path, {"priority": 3}, If_Match="*")).status_code == 200
    newest = (await send(pool, "GET", path)).headers["etag"]
    assert (await send(pool, "DELETE", path, If_Match=newest)).status_code == 204
    assert (await send(pool, "DELETE", path, If_Match="*")).status_code == 404
