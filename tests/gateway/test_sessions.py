"""Nodes open sessions for leases; their tasks take requests and close."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from protocol.errors import MusterError
from protocol.identifiers import digest, run_id
from protocol.identity.keys import Key
from tests.kit.gateway import RUN, GatewayTask, GatewayUnderTest, eventually, running_gateway


def refusal(gateway: GatewayUnderTest, node: Key, **lease: Any) -> str:
    task = GatewayTask(gateway, node, gateway.lease(node, **lease))
    with pytest.raises(MusterError) as refused:
        task.open()
    return refused.value.code


def test_a_session_needs_a_valid_lease_of_a_member(gateway: GatewayUnderTest) -> None:
    node, stranger = gateway.node(), Key.generate()
    assert refusal(gateway, stranger) == "not-a-member"
    assert refusal(gateway, node, signer=stranger) == "foreign-lease"
    assert refusal(gateway, node, pool_id=8) == "other-run"
    assert refusal(gateway, node, run=run_id("other")) == "other-run"
    assert refusal(gateway, node, digest=digest(bytes([6]) * 32)) == "unknown-version"
    assert refusal(gateway, node, version=4) == "unknown-version"
    assert refusal(gateway, node, seconds=50) == "lease-too-short"
    assert refusal(gateway, node, groups=5000) == "lease-size"
    with pytest.raises(MusterError, match="accepted are torch/float32, vllm/float32"):
        gateway.task(node, arithmetic="torch/bfloat16")
    other = gateway.node()
    task = GatewayTask(gateway, other, gateway.lease(node))
    with pytest.raises(MusterError) as refused:
        task.open()
    assert refused.value.code == "other-node"
    del gateway.ledger.members[node.address]
    gateway.clock.turn(60)
    assert refusal(gateway, node) == "not-a-member"


def test_open_sessions_are_limited(redis_url: str) -> None:
    with running_gateway(redis_url, sessions_per_node=2, sessions_per_provider=3, most_sessions=4) as gateway:
        node, sister = gateway.node(), gateway.node()
        gateway.ledger.members[sister.address] = node.address
        first = gateway.task(node)
        gateway.task(node)
        assert refusal(gateway, node) == "rate-limited"
        gateway.task(sister)
        assert refusal(gateway, sister) == "rate-limited"
        gateway.task()
        assert refusal(gateway, gateway.node()) == "rate-limited"
        first.close()
        gateway.task(node)


def test_one_session_per_lease_with_one_token(gateway: GatewayUnderTest) -> None:
    task = gateway.task()
    former = task.session
    client = gateway.client(gateway.token())
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(client.completions.create, model=RUN, prompt="a", max_tokens=4)
        request = eventually(lambda: task.take().requests)[0]
        again = task.open()
        assert again.id == former.id
        assert again.token != former.token
        repeated = task.take_one()
        assert (repeated.id, repeated.attempt, repeated.seed) == (request.id, 1, request.seed)
        assert task.send(*task.parts(request)).cancelled == (request.id,)
        task.answer(repeated)
        assert answer.result().choices[0].text
    task.session = former
    assert task.post("close").status_code == 401
    task.session = again
    assert [one.id for one in task.close().requests] == [request.id]
    assert task.post("requests", b'{"free": 1, "wait_ms": 0}').status_code == 409
    with pytest.raises(MusterError) as refused:
        task.open()
    assert refused.value.code == "session-closed"


def test_requests_of_tasks_are_checked(gateway: GatewayUnderTest) -> None:
    task = gateway.task()
    record = b'{"id": "%s", "attempt": 0, "number": 0, "record": %s}'
    samples = b'[{"sample": 0, "prompt": 0, "token_ids": [1], "logprobs": [-1], "finish": "eos", "proofs": null}]'
    lenient = (
        b'{"version": "0x%s", "arithmetic": "a", "seed": "0x%s", "prompts": [[1]], "samples": %s, "more": 1, '
        b'"sampling": {"max_new_tokens": 1, "temperature": 1, "top_p": 1, "top_k": 0}}'
    ) % (b"0" * 64, b"0" * 64, samples)
    for route, body, status in (
        ("answers", b'{"parts": [%s]}' % (record % (b"0" * 32, lenient)), 422),
        ("answers", b'{"parts": [%s]}' % (record % (b"0" * 32, lenient.replace(b'"more": 1, ', b""))), 200),
        ("requests", b'{"free": 1, "wait_ms": 0, "more": 1}', 422),
        ("requests", b'{"free": 2000, "wait_ms": 0}', 422),
        ("requests", b" " * 2000, 413),
        ("answers", b'{"parts": []}', 422),
        ("answers", b'{"parts": [{"id": "%s", "attempt": 0, "number": 0}]}' % (b"0" * 32), 422),
    ):
        assert task.post(route, body).status_code == status, route
    task.session = task.session.model_copy(update={"id": "0" * 32})
    assert task.post("requests", b'{"free": 1, "wait_ms": 0}').status_code == 401


def test_a_session_closes_when_its_groups_its_slot_time_or_its_lease_end(gateway: GatewayUnderTest) -> None:
    client = gateway.client(gateway.token())

    def ask(task: GatewayTask) -> None:
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(client.completions.create, model=RUN, prompt="a", max_tokens=4)
            task.answer(task.take_one())
            answer.result()

    full = gateway.task(groups=2)
    ask(full)
    assert not full.take().closing
    ask(full)
    assert full.take().closing
    assert len(full.close().requests) == 2
    slow = gateway.task()
    ask(slow)
    assert not slow.take().closing
    gateway.clock.turn(61)
    assert slow.take().closing
    idle = gateway.task()
    gateway.clock.turn(500)
    assert not idle.take().closing
    gateway.clock.turn(45)
    assert idle.take().closing
    assert idle.close().requests == ()


def test_requests_go_to_the_node_with_the_fewest_and_the_session_with_the_most_room(gateway: GatewayUnderTest) -> None:
    busy = gateway.node()
    sessions = [gateway.task(busy), gateway.task(busy), gateway.task()]
    for task, free in zip(sessions, (3, 8, 2), strict=True):
        task.take(free=free)
    client = gateway.client(gateway.token())
    room = [3, 8, 2]
    with ThreadPoolExecutor() as pool:
        taken, answers = [], []
        for wanted in (1, 2, 1, 2, 1):
            answers.append(pool.submit(client.completions.create, model=RUN, prompt="a", max_tokens=4))
            (request,) = sessions[wanted].take(free=room[wanted], wait_s=5).requests
            room[wanted] -= 1
            taken.append((sessions[wanted], request))
        for task, request in taken:
            task.answer(request)
        assert all(each.result().choices[0].text for each in answers)
