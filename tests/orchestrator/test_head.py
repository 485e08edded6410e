"""HEAD on every GET route of the orchestrator."""

from __future__ import annotations

import httpx
from fastapi.routing import APIRoute

from protocol.http.client import RequestSigner
from tests.kit.memory_ledger import MANAGER, PoolUnderTest


async def test_every_get_route_answers_a_head_with_the_same_headers(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    values = {
        "node": key.address,
        "task_id": task,
        "assignment_id": assignment.id,
        "webhook_id": "0" * 32,
        "name": "index.html",
        "relay": key.address,
        "key": "0x" + "0" * 64,
    }
    routes = [route.path_format for route in pool.app.routes if isinstance(route, APIRoute) and "GET" in route.methods]
    assert len(routes) > 30
    answered = set()
    async with pool.http() as http:
        http.headers["Authorization"] = f"Bearer {pool.token}"
        for template in routes:
            path = template.format_map(
                {name: values.get(name, "x") for name in ("name", *values)} | {"address": key.address}
            )
            get, head = await http.get(path), await http.head(path)
            assert (head.status_code, head.content) == (get.status_code, b""), path
            ignored = {"x-request-id", *(["content-length"] if path == "/metrics" else [])}
            named = [{k: v for k, v in answer.headers.items() if k not in ignored} for answer in (get, head)]
            assert named[0] == named[1], path
            if get.status_code == 200:
                answered.add(template)
        follow = "/v1/events?follow=1"
        for _ in range(pool.dependencies.settings.streams + 1):
            assert (await http.head(follow)).headers["content-type"].startswith("text/event-stream")
        assert not pool.dependencies.stream_slots.locked()
    assert {"/v1/tasks", "/v1/assignments/{assignment_id}", "/v1/nodes/{node}/logs", "/docs"} <= answered
    signer = RequestSigner(MANAGER, audience=pool.dependencies.key.address, clock=pool.clock)
    async with pool.http(signer) as http:
        assert (await http.head("/v1/tasks")).status_code == 200, "the signature is over the method HEAD"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=pool.app), base_url="http://pool") as http:
        assert (await http.head("/v1/tasks")).status_code == 401
