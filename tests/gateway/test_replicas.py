"""Several replicas of a gateway on one Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.kit.gateway import POOL, RUN, GatewayUnderTest, eventually, record_of, running_gateway, text_of


def test_clients_and_sessions_may_be_at_different_replicas(redis_url: str) -> None:
    with running_gateway(redis_url, replicas=2) as gateway:
        task = gateway.task(replica=1).start()
        token = gateway.token()
        create: Any = gateway.client(token, replica=0).completions.create
        chunks = list(create(model=RUN, prompt="a", max_tokens=8, stream=True))
        text = "".join(chunk.choices[0].text for chunk in chunks)
        assert text == text_of(record_of(chunks[-1])["samples"][0]["token_ids"])
        task.base = gateway.url
        whole = create(model=RUN, prompt="a", max_tokens=8)
        assert whole.choices[0].text
        task.stop()
        task.base = gateway.replicas[1].url
        assert len(task.close().requests) == 2


@contextmanager
def process(gateway: GatewayUnderTest, **settings: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs a replica in a process of its own; yields it with its URL."""
    given = {
        "redis": gateway.redis_url,
        "key": gateway.key.reveal().hex(),
        "orchestrator": gateway.ledger.orchestrator.reveal().hex(),
        "members": list(gateway.ledger.members),
        "settings": settings,
    }
    command = [sys.executable, "-m", "tests.kit.gateway_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(json.dumps(given) + "\n")
            running.stdin.flush()
            yield running, f"http://127.0.0.1:{int(running.stdout.readline())}"
        finally:
            running.kill()


def test_a_killed_replica_loses_its_clients_and_nothing_is_paid_for_them(redis_url: str) -> None:
    with running_gateway(redis_url) as gateway, ThreadPoolExecutor() as pool:
        task = gateway.task()
        task.take()
        token = gateway.token()
        with process(gateway) as (replica, url):
            body = {"model": RUN, "prompt": "a", "max_tokens": 8, "stream": True}
            headers = {"Authorization": f"Bearer {token}"}

            def read() -> bytes:
                read = b""
                with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=30) as stream:
                    for part in stream.iter_raw():
                        read += part
                return read

            reading = pool.submit(read)
            request = task.take_one()
            task.base = url
            task.send(task.parts(request)[0])
            eventually(lambda: gateway.replicas[0].run(counts(gateway))["in_progress"] == 1)
            os.kill(replica.pid, signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                reading.result(10)
        task.base = gateway.url
        assert task.take(free=0).cancelled == ()
        gateway.replicas[0].run(expire_heartbeats(gateway))
        assert task.take(free=0, wait_s=5).cancelled == (request.id,)
        assert task.send(*task.parts(request)).cancelled == (request.id,)
        create: Any = gateway.client(token).completions.create
        answer = pool.submit(create, model=RUN, prompt="b", max_tokens=4)
        task.answer(task.take_one())
        assert answer.result(10).choices[0].text
        (only,) = task.close().requests
        assert json.loads(only.body)["prompt"] == "b"


async def counts(gateway: GatewayUnderTest) -> dict[str, int]:
    return await gateway.replicas[0].dependencies.database.counts()


async def expire_heartbeats(gateway: GatewayUnderTest) -> None:
    """Deletes the heartbeats of other replicas, as Redis does after 15 s."""
    own = gateway.replicas[0].dependencies
    for key in await own.database.redis.keys(f"muster:{{gateway-{POOL}}}:replica:*"):
        if not key.decode().endswith(own.replica):
            await own.database.redis.delete(key)


def test_a_client_that_does_not_read_does_not_hold_up_the_worker(redis_url: str) -> None:
    """The answer waits in Redis, within its bounds, not in the replica."""
    with running_gateway(redis_url) as gateway:
        task = gateway.task(groups=64)
        with process(gateway, answer_bytes=2 << 20) as (_, url):
            token = gateway.token()
            body = {"model": RUN, "prompt": "a", "max_tokens": 64, "n": 32, "stream": True, "logprobs": 0}
            task.take(free=64)
            with ThreadPoolExecutor() as pool:

                def begin() -> str:
                    request = task.take_one()
                    for part in task.parts(request, count=64, each=8):
                        task.send(part)
                    return request.id

                answering = pool.submit(begin)
                with httpx.stream(
                    "POST",
                    f"{url}/v1/completions",
                    json=body,
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=30,
                ):
                    identifier = answering.result(30)
            assert [one.id for one in task.close().requests] == [identifier], "the answer was whole, so it counts"
