"""Tokens of clients: quotas, expiry, revocation; bounds of the queue."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest

from gateway.clients.tokens import GatewayRole, TokenQuota
from protocol.errors import Conflict, NotFound
from protocol.http.tokens import new_token
from protocol.wire.serving import AnswerPart, AnswerTokens
from tests.kit.gateway import RUN, GatewayUnderTest, eventually, running_gateway


def ask(gateway: GatewayUnderTest, token: str, **options: Any) -> Any:
    create: Any = gateway.client(token).completions.create
    return create(model=RUN, prompt="a", **{"max_tokens": 4} | options)


def test_unknown_expired_and_revoked_tokens_and_those_of_verifiers_are_refused(gateway: GatewayUnderTest) -> None:
    first = gateway.replicas[0]
    store = first.dependencies.tokens
    gateway.task(seconds=8000).start()
    for token in ("", "nonsense", new_token(), gateway.token("x") + "0"):
        with pytest.raises(openai.AuthenticationError) as refused:
            ask(gateway, token or "none")
        assert refused.value.code == "invalid_api_key"
    assert httpx.get(f"{gateway.url}/v1/models").status_code == 401
    verifier = gateway.token("verifier", role=GatewayRole.VERIFIER)
    with pytest.raises(openai.PermissionDeniedError):
        ask(gateway, verifier)
    short = gateway.token("short", quota=TokenQuota(life=timedelta(hours=1)))
    assert ask(gateway, short).choices
    gateway.clock.turn(3700)
    with pytest.raises(openai.AuthenticationError, match="has expired"):
        ask(gateway, short)
    lasting = gateway.token("lasting")
    first.run(store.revoke("lasting"))
    with pytest.raises(openai.AuthenticationError, match="was revoked"):
        ask(gateway, lasting)
    with pytest.raises(NotFound):
        first.run(store.revoke("nobody"))
    with pytest.raises(Conflict):
        first.run(store.create("lasting", GatewayRole.CLIENT, TokenQuota()))
    found = {row.name: row for row in first.run(store.list())}
    assert (found["lasting"].revoked, found["short"].used_today) == (True, 7)
    for key in first.run(first.dependencies.database.redis.keys("*token*")):
        assert lasting[-43:].encode() not in key


def test_quotas_of_a_token(gateway: GatewayUnderTest) -> None:
    task = gateway.task(groups=64).start()
    busy = gateway.token("busy", quota=TokenQuota(per_minute=2))
    gateway.clock.turn(60 - gateway.clock.now().timestamp() % 60)
    ask(gateway, busy)
    ask(gateway, busy)
    with pytest.raises(openai.RateLimitError, match="2 requests per minute") as refused:
        ask(gateway, busy)
    assert 0 < int(refused.value.response.headers["Retry-After"]) <= 60
    daily = gateway.token("daily", quota=TokenQuota(per_day=20))
    ask(gateway, daily, max_tokens=13)
    with pytest.raises(openai.RateLimitError, match="20 tokens per day") as refused:
        ask(gateway, daily, max_tokens=14)
    assert refused.value.code == "insufficient_quota"
    ask(gateway, daily, max_tokens=13)
    task.stop()
    single = gateway.token("single", quota=TokenQuota(concurrent=1))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, gateway, single)
        eventually(lambda: gateway.replicas[0].run(gateway.replicas[0].dependencies.database.counts())["in_progress"])
        with pytest.raises(openai.RateLimitError, match="1 requests of this token"):
            ask(gateway, single)
        task.answer(task.take_one())
        first.result(10)
        answer = pool.submit(ask, gateway, single)
        task.answer(task.take_one())
        assert answer.result(10).choices


def test_a_full_queue_and_a_long_wait_are_503(redis_url: str) -> None:
    with running_gateway(redis_url, most_waiting=2, wait_timeout_s=30) as gateway:
        gateway.task()
        token = gateway.token()
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(ask, gateway, token) for _ in range(2)]
            counts = gateway.replicas[0].dependencies.database.counts
            eventually(lambda: gateway.replicas[0].run(counts())["waiting"] == 2)
            with pytest.raises(openai.InternalServerError, match="2 requests wait for a worker"):
                ask(gateway, token)
            gateway.clock.turn(31)
            for each in waiting:
                with pytest.raises(openai.InternalServerError, match="no worker had room") as refused:
                    each.result(10)
                assert (refused.value.status_code, refused.value.response.headers["Retry-After"]) == (503, "5")
        assert gateway.replicas[0].run(counts())["waiting"] == 0


def test_a_flood_of_clients_is_answered_or_refused(redis_url: str) -> None:
    with running_gateway(redis_url, most_waiting=8, sessions_per_node=8) as gateway:
        node = gateway.node()
        tasks = [gateway.task(node, groups=512).start(free=8) for _ in range(2)]
        token = gateway.token(quota=TokenQuota(per_minute=1000, concurrent=20))

        create: Any = gateway.client(token).completions.create

        def one(_: int) -> str:
            try:
                return "ok" if create(model=RUN, prompt="a", max_tokens=4).choices else "empty"
            except openai.APIStatusError as error:
                return str(error.status_code)

        with ThreadPoolExecutor(30) as pool:
            results = list(pool.map(one, range(60)))
        assert set(results) <= {"ok", "429", "503"}
        assert results.count("ok") >= 10
        for task in tasks:
            task.stop()
        assert sum(len(task.close().requests) for task in tasks) == results.count("ok")


def test_sessions_check_the_token_before_the_body_and_stop_at_a_bodys_first_error(gateway: GatewayUnderTest) -> None:
    task = gateway.task()
    hostile = json.dumps({"parts": [{"id": "0" * 32, "attempt": 0, "number": 0, "tokens": [""] * 200_000}]}).encode()
    url = f"{gateway.url}/v1/sessions/{task.session.id}/answers"
    stranger = httpx.post(url, content=hostile, headers={"Authorization": f"Bearer {new_token()}"})
    assert (stranger.status_code, stranger.json()["code"]) == (401, "bad-token")
    known = task.post("answers", hostile)
    assert known.status_code == 422
    assert len(known.content) < 2_000, "it names one error, not 200,000"


def test_an_answer_that_is_too_large_is_no_nodes_fault(redis_url: str) -> None:
    with running_gateway(redis_url, answer_bytes=64 * 1024) as gateway, ThreadPoolExecutor() as pool:
        tasks = [gateway.task() for _ in range(2)]
        token = gateway.token()
        for _ in range(4):  # three strikes would cost a node the gateway's trust
            asking = pool.submit(ask, gateway, token, max_tokens=8)
            while not asking.done():  # the second node's failure confirms that of the first one
                for task in tasks:
                    for request in task.take(wait_s=0.05).requests:
                        large = AnswerTokens(choice=0, tokens=(1,), logprobs=(-0.5,), text="x" * 70_000)
                        task.send(AnswerPart(id=request.id, attempt=request.attempt, number=0, tokens=(large,)))
            with pytest.raises(openai.BadRequestError) as refused:
                asking.result(20)
            assert refused.value.param == "max_tokens"
        asking = pool.submit(ask, gateway, token)
        while not asking.done():
            for task in tasks:
                for request in task.take(wait_s=0.05).requests:
                    task.answer(request)
        assert asking.result().choices[0].text
