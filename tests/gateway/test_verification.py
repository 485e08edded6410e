"""Verifiers check answers before or after their delivery; nodes with invalid answers get no more requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from gateway.clients.tokens import GatewayRole
from gateway.settings import Verify
from protocol.wire.serving import TakenVerification, Verification
from tests.kit.gateway import DIGEST, LIMIT, RUN, GatewayUnderTest, eventually, record_of, running_gateway, text_of


class Verifier:
    """A verifier's client."""

    def __init__(self, gateway: GatewayUnderTest) -> None:
        self._gateway = gateway
        self._headers = {"Authorization": f"Bearer {gateway.token('verifier', role=GatewayRole.VERIFIER)}"}

    def post(self, route: str, body: Any) -> httpx.Response:
        return httpx.post(f"{self._gateway.url}/v1/verifications/{route}", json=body, headers=self._headers, timeout=30)

    def take(self, *, wait_s: float = 5, version: str = DIGEST) -> Verification | None:
        answer = self.post("take", {"versions": [version], "wait_ms": round(wait_s * 1000)})
        assert answer.status_code == 200, answer.text
        return TakenVerification.model_validate_json(answer.content).verification

    def judge(self, found: Verification | None, valid: bool | None) -> bool:
        assert found is not None
        accepted: bool = self.post(found.id, {"valid": valid, "reasons": ["a reason"]}).json()["accepted"]
        return accepted


@pytest.fixture
def before(redis_url: str) -> Iterator[GatewayUnderTest]:
    with running_gateway(redis_url, verify=Verify.BEFORE) as found:
        yield found


def test_with_before_clients_get_only_valid_answers(before: GatewayUnderTest) -> None:
    liar, honest = before.task(), before.task()
    verifier = Verifier(before)
    liar.take()
    client = before.client(before.token())
    with ThreadPoolExecutor() as pool:

        def stream() -> list[Any]:
            return list(client.completions.create(model=RUN, prompt="a", max_tokens=4, stream=True, seed=3))

        reading = pool.submit(stream)
        request = liar.take_one()
        liar.answer(request, tokens=[9, 9, 9])
        found = verifier.take()
        assert found is not None
        assert json.loads(found.answer)["muster"]["samples"][0]["token_ids"] == [9, 9, 9]
        assert json.loads(found.answer)["choices"][0]["text"] == "jjj"
        assert json.loads(found.body)["prompt"] == "a"
        assert (found.seed, found.most_new_tokens) == (request.seed, LIMIT)
        assert not reading.done()
        assert verifier.judge(found, valid=None)
        assert verifier.judge(verifier.take(), valid=None)
        assert verifier.judge(verifier.take(), valid=False)
        assert not verifier.judge(found, valid=True), "the first result counts"
        again = honest.take_one()
        assert (again.id, again.attempt) == (request.id, 1)
        honest.answer(again)
        assert verifier.judge(verifier.take(), valid=True)
        chunks = reading.result(10)
        text = "".join(chunk.choices[0].text for chunk in chunks)
        assert text == text_of(record_of(chunks[-1])["samples"][0]["token_ids"])
        # The liar isn't told: its session ends as usual, with the invalid answer in its list.
        asking = pool.submit(client.completions.create, model=RUN, prompt="b", max_tokens=4)
        assert liar.take(wait_s=0.2).requests == ()
        honest.answer(honest.take_one())
        verifier.judge(verifier.take(), valid=True)
        assert asking.result(10).choices[0].text
    assert [one.id for one in liar.close().requests] == [request.id]
    assert len(honest.close().requests) == 2
    assert verifier.take(wait_s=0) is None


def test_without_a_verdict_in_time_the_client_gets_a_503(before: GatewayUnderTest) -> None:
    task = before.task().start()
    client = before.client(before.token())
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(client.completions.create, model=RUN, prompt="a", max_tokens=4)
        eventually(lambda: task.answered)
        eventually(lambda: before.replicas[0].run(before.replicas[0].dependencies.database.counts())["verifications"])
        before.turn(61)
        with pytest.raises(openai.InternalServerError, match="no verifier judged") as error:
            asking.result(10)
    assert error.value.code == "not_verified"
    task.stop()
    assert len(task.close().requests) == 1, "the node is not blamed"


def test_an_answer_that_nobody_can_judge_is_not_delivered(before: GatewayUnderTest) -> None:
    before.task().start()
    verifier = Verifier(before)
    client = before.client(before.token())
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(client.completions.create, model=RUN, prompt="a", max_tokens=4)
        for _ in range(3):
            assert verifier.judge(verifier.take(), valid=None)
        with pytest.raises(openai.InternalServerError, match="no verifier judged"):
            asking.result(10)


def test_with_sampled_answers_are_delivered_at_once(redis_url: str) -> None:
    with running_gateway(redis_url, verify=Verify.SAMPLED, verify_share=1.0) as gateway:
        task, verifier = gateway.task().start(), Verifier(gateway)
        client = gateway.client(gateway.token())
        answer: Any = client.completions.create(model=RUN, prompt="a", max_tokens=4)
        assert verifier.take(wait_s=0, version="0x" + "77" * 32) is None
        found = verifier.take()
        assert found is not None
        shown = json.loads(found.answer)
        assert (shown["id"], shown["muster"]) == (answer.id, answer.muster)
        assert verifier.judge(found, valid=False)
        with ThreadPoolExecutor() as pool:
            asking = pool.submit(client.completions.create, model=RUN, prompt="b", max_tokens=4)
            counts = gateway.replicas[0].dependencies.database.counts
            eventually(lambda: gateway.replicas[0].run(counts())["waiting"] == 1)
            gateway.turn(61)
            with pytest.raises(openai.InternalServerError, match="no worker had room"):
                asking.result(10)
        assert len(task.answered) == 1
        metrics = httpx.get(f"{gateway.url}/metrics").text
        assert 'muster_gateway_verdicts_total{verdict="invalid"} 1.0' in metrics
        assert 'muster_gateway_requests_total{outcome="answered"} 1.0' in metrics


def test_verifiers_need_their_own_token(before: GatewayUnderTest) -> None:
    token = before.token()
    body = {"versions": [DIGEST], "wait_ms": 0}
    route = f"{before.url}/v1/verifications/take"
    assert httpx.post(route, json=body).status_code == 401
    assert httpx.post(route, json=body, headers={"Authorization": f"Bearer {token}"}).status_code == 403
    verifier = Verifier(before)
    assert verifier.post("take", {"versions": [], "wait_ms": 0}).status_code == 422
    assert verifier.post("0" * 32, {"valid": True}).json() == {"accepted": False}
