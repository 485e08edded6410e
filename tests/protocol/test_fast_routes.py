"""A fast route in the middleware has the same limits as other routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope

from protocol.errors import Forbidden, Unauthenticated
from protocol.http.rates import IpRates, Rate
from protocol.http.serving.service import create_service
from protocol.http.verification import FastResponse, SignedRequest, read_body
from protocol.identity.signing import check_response
from protocol.runtime.clock import ManualClock
from tests.protocol.conftest import NODE, SERVICE

LIMIT = 100


async def echo(scope: Scope, receive: Receive) -> FastResponse:
    body = await read_body(receive, 10 * LIMIT)
    match body:
        case b"forbidden":
            raise Forbidden("not you", hint="ask somebody else")
        case b"broken":
            raise RuntimeError("the password is hunter2")
        case _:
            return FastResponse(status=200, headers=[(b"content-length", b"%d" % len(body))], body=body)


@pytest.fixture
def app(clock: ManualClock) -> FastAPI:
    app = create_service(
        "test",
        version="1",
        clock=clock,
        body_limit=LIMIT,
        ip_rates=IpRates(Rate(count=1, per=timedelta(seconds=1), burst=20), clock=clock),
        fast_routes={("POST", "/v1/echo"): echo},
    )

    @app.get("/v1/echo")
    async def look() -> str:
        return "through the framework"

    return app


async def test_a_fast_route_answers_with_the_middlewares_headers(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/echo", content=b"hello")
    assert (answer.status_code, answer.content) == (200, b"hello")
    assert len(answer.headers["x-request-id"]) == 16
    assert answer.headers["x-muster-version"] == "1"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_other_methods_and_paths_go_through_the_framework(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/echo")).json() == "through the framework"
    assert (await http.put("/v1/echo")).status_code == 405
    assert (await http.post("/v1/echo/more")).status_code == 404


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"forbidden", {}, 403, "forbidden"),
        (b"broken", {}, 500, "internal"),
        (b"x" * (LIMIT + 1), {}, 413, "too-large"),
        (b"x", {"Content-Length": "1e3"}, 400, "malformed-header"),
        (b"x", {"X-Muster-Version": "7"}, 426, "upgrade-required"),
    ],
)
async def test_every_error_is_a_problem_document(
    http: httpx.AsyncClient, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = await http.post("/v1/echo", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["instance"].endswith(answer.headers["x-request-id"])
    assert "hunter2" not in answer.text


async def test_a_body_without_a_length_is_stopped_at_the_limit(http: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (LIMIT // 2)

    answer = await http.post("/v1/echo", content=pieces())
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large")


async def test_a_fast_route_counts_towards_the_rate_of_its_ip(http: httpx.AsyncClient) -> None:
    answers = [await http.post("/v1/echo", content=b"x") for _ in range(21)]
    assert [answer.status_code for answer in answers] == [200] * 20 + [429]


async def test_a_fast_route_has_its_own_metrics_series(http: httpx.AsyncClient) -> None:
    await http.post("/v1/echo", content=b"x")
    await http.post("/v1/echo", content=b"forbidden")
    text = (await http.get("/metrics")).text
    assert 'muster_http_answers_total{method="POST",route="/v1/echo",status="200"} 1.0' in text
    assert 'muster_http_answers_total{method="POST",route="/v1/echo",status="403"} 1.0' in text
    assert "muster_http_open_requests 1.0" in text  # the request for the metrics itself


async def test_a_caller_that_disconnects_within_the_body_causes_no_error(app: FastAPI) -> None:
    messages: list[Message] = [
        {"type": "http.request", "body": b"half", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/echo",
        "raw_path": b"/v1/echo",
        "query_string": b"",
        "headers": [],
        "client": ("192.0.2.1", 1),
    }
    await app(scope, receive, send)
    assert not sent


def test_a_signed_answer_is_valid_for_its_request_only() -> None:
    request = SignedRequest(address=NODE.address, audience=SERVICE.address, nonce="a" * 32, timestamp_ms=1, body=b"")
    answer = request.fast_answer(SERVICE, b"{}")
    headers = httpx.Headers(answer.headers)
    assert headers["content-length"] == "2"
    check_response(headers, service=SERVICE.address, address=NODE.address, nonce="a" * 32, status=200, body=b"{}")
    with pytest.raises(Unauthenticated, match="not signed by"):
        check_response(headers, service=SERVICE.address, address=NODE.address, nonce="b" * 32, status=200, body=b"{}")
