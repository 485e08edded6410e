"""Every service: health, limits, problem documents, protocol versions, graceful shutdown."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from prometheus_client import Gauge
from redis.asyncio import Redis

from protocol.errors import Unavailable
from protocol.http.rates import HEALTH_RATE, CallerAddresses, IpRates, Rate
from protocol.http.serving.service import create_service, serve
from protocol.redis.connection import check_redis
from protocol.runtime.clock import ManualClock
from protocol.runtime.loops import BackgroundLoops
from tests.kit.http_server import served

SWAGGER_UI = {
    "swagger-ui-bundle.js": "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
}


def client_of(app: FastAPI, *, ip: str = "192.0.2.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(ip, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://service")


async def test_the_health_endpoint_names_service_and_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok", "service": "test", "version": "1.2.3"}


async def test_a_service_is_ready_when_every_check_passes() -> None:
    well = True

    async def store() -> None:
        if not well:
            raise Unavailable("the store is down")

    app = create_service("test", version="1", checks={"store": store})
    async with client_of(app) as http:
        assert (await http.get("/readyz")).status_code == 200
        well = False
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]) == (503, {"store": "the store is down"})
        assert "muster_ready 0.0" in (await http.get("/metrics")).text


async def test_a_crashing_check_does_not_reveal_the_reason() -> None:
    async def check() -> None:
        raise RuntimeError("password hunter2")

    async with client_of(create_service("test", version="1", checks={"store": check})) as http:
        answer = await http.get("/readyz")
    assert answer.status_code == 503
    assert "hunter2" not in answer.text


async def test_a_redis_that_refuses_writes_is_not_ready(redis: Redis) -> None:
    async with client_of(create_service("test", version="1", checks={"redis": lambda: check_redis(redis)})) as http:
        assert (await http.get("/readyz")).status_code == 200
        await redis.config_set("min-replicas-to-write", 1)
        try:
            answer = await http.get("/readyz")
        finally:
            await redis.config_set("min-replicas-to-write", 0)
        assert (answer.status_code, list(answer.json()["checks"])) == (503, ["redis"])
        assert (await http.get("/readyz")).status_code == 200


async def test_simultaneous_callers_share_one_round_of_checks() -> None:
    rounds, gate = 0, asyncio.Event()

    async def check() -> None:
        nonlocal rounds
        rounds += 1
        await gate.wait()

    async with client_of(create_service("test", version="1", checks={"one": check})) as http:
        asking = [asyncio.create_task(http.get("/readyz")) for _ in range(20)]
        while rounds == 0:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0)
        asking[0].cancel()  # a cancelled caller must not cancel the round that others wait for
        await asyncio.sleep(0.01)
        gate.set()
        assert [(await each).status_code for each in asking[1:]] == [200] * 19
    assert rounds == 1


async def test_a_stopping_service_is_not_ready(app: FastAPI, http: httpx.AsyncClient) -> None:
    app.state.stopping.set()
    assert (await http.get("/readyz")).status_code == 503
    assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not-found"),
        ("DELETE", "/v1/notes", 405, "http-405"),
        ("GET", "/v1/numbers?count=many", 422, "unprocessable"),
        ("GET", "/v1/broken", 500, "internal"),
        ("GET", "/v1/notes", 401, "unsigned"),
    ],
)
async def test_every_error_is_a_problem_document(
    method: str, path: str, status: int, code: str, http: httpx.AsyncClient
) -> None:
    answer = await http.request(method, path)
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:muster:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    assert ("openapi.json" in problem.get("hint", "")) == (status == 404)


async def test_an_unexpected_error_shows_a_reference_and_no_internals(
    http: httpx.AsyncClient, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    problem = (await http.get("/v1/broken")).json()
    assert "hunter2" not in str(problem)
    reference = problem["detail"].split("reference ")[1].rstrip(")")
    # the destination of logs depends on which test configured them first
    assert reference in capsys.readouterr().out + caplog.text


async def test_a_validation_problem_names_fields_and_repeats_no_value(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/numbers?count=s3cret")
    assert list(answer.json()["fields"]) == ["query.count"]
    assert "s3cret" not in answer.text


@pytest.mark.parametrize(
    ("spoken", "status", "word"),
    [("1", 200, ""), ("1-7", 200, ""), ("2", 426, "older"), ("2-3", 426, "older"), ("0", 400, "range"), ("x", 400, "")],
)
async def test_an_unsupported_version_is_refused_with_the_supported_one(
    spoken: str, status: int, word: str, http: httpx.AsyncClient
) -> None:
    answer = await http.get("/v1/numbers?count=1", headers={"X-Muster-Version": spoken})
    assert (answer.status_code, answer.headers["x-muster-version"]) == (status, "1")
    assert word in answer.text


async def test_health_is_answered_for_any_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz", headers={"X-Muster-Version": "99"})).status_code == 200


async def test_openapi_describes_problem_answers_and_no_framework_errors(http: httpx.AsyncClient) -> None:
    schema = (await http.get("/openapi.json")).json()
    assert schema["info"]["version"] == "1.2.3"
    assert "Problem" in schema["components"]["schemas"]
    assert "HTTPValidationError" not in str(schema)
    answers = schema["paths"]["/v1/numbers"]["get"]["responses"]
    assert "application/problem+json" in answers["default"]["content"]


async def test_unknown_http_methods_share_one_metrics_series(http: httpx.AsyncClient) -> None:
    for number in range(3):
        await http.request(f"WORD{number}", "/v1/numbers")
    text = (await http.get("/metrics")).text
    assert 'muster_http_answers_total{method="(other)",route="/v1/numbers",status="405"} 3.0' in text
    assert "WORD" not in text


async def test_metrics_count_by_route_and_not_by_path(http: httpx.AsyncClient) -> None:
    for number in range(3):
        await http.get(f"/v1/numbers?count={number}")
        await http.get(f"/made/up/{number}")
    text = (await http.get("/metrics")).text
    assert 'muster_http_answers_total{method="GET",route="/v1/numbers",status="200"} 3.0' in text
    assert 'route="(none)",status="404"} 3.0' in text
    assert "made/up" not in text


async def test_metrics_are_rendered_at_most_once_a_second(clock: ManualClock) -> None:
    """Rendering takes 5 to 20 ms of the event loop, and any caller can request it."""
    app = create_service("test", version="1", clock=clock)
    made = 0

    def count() -> float:
        nonlocal made
        made += 1
        return made

    Gauge("made", "Texts", registry=app.state.registry).set_function(count)
    async with client_of(app) as http:
        texts = {(await http.get("/metrics")).text for _ in range(5)}
        assert (made, len(texts)) == (1, 1)
        await clock.turn(timedelta(seconds=1))
        assert "made 2.0" in (await http.get("/metrics")).text


async def test_one_ip_is_rate_limited_and_others_are_not(clock: ManualClock) -> None:
    rates = IpRates(Rate(count=1, per=timedelta(seconds=1), burst=2), clock=clock)
    app = create_service("test", version="1", clock=clock, ip_rates=rates)
    async with client_of(app) as http, client_of(app, ip="192.0.2.2") as other:
        assert [(await http.get("/docs")).status_code for _ in range(3)] == [200, 200, 429]
        assert (await other.get("/docs")).status_code == 200
        assert (await http.get("/healthz")).status_code == 200
        health = [(await http.get("/metrics")).status_code for _ in range(HEALTH_RATE.burst)]
        assert health == [200] * (HEALTH_RATE.burst - 1) + [429]  # requests on other paths are not counted here
        await clock.turn(timedelta(seconds=1))
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/docs")).status_code == 200


async def test_forwarded_addresses_are_used_only_from_trusted_proxies(clock: ManualClock) -> None:
    rates = IpRates(Rate(count=1, per=timedelta(hours=1), burst=1), clock=clock)
    app = create_service("test", version="1", clock=clock, ip_rates=rates, callers=CallerAddresses(["192.0.2.0/28"]))
    async with client_of(app) as proxy, client_of(app, ip="198.51.100.1") as liar:
        said = [
            await proxy.get("/docs", headers={"X-Forwarded-For": f"6.6.6.6, 203.0.113.{number}"})
            for number in (1, 2, 1)
        ]
        assert [answer.status_code for answer in said] == [200, 200, 429]
        lies = [await liar.get("/docs", headers={"X-Forwarded-For": f"203.0.113.{number}"}) for number in (7, 8)]
        assert [answer.status_code for answer in lies] == [200, 429]


async def test_bodies_are_stopped_at_the_limit_whatever_length_they_claim() -> None:
    app = create_service("test", version="1", body_limit=100, body_limits=[("/large/", 1000)])

    @app.post("/{size}/")
    async def take(size: str, body: dict[str, str]) -> str:
        return size

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"a": "'
        yield b"x" * 200 + b'"}'

    body = b'{"a": "' + b"x" * 200 + b'"}'
    async with client_of(app) as http:
        for content in (body, pieces()):
            answer = await http.post("/small/", content=content, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
        assert (await http.post("/large/", content=body, headers={"Content-Type": "application/json"})).is_success


async def test_a_port_that_is_in_use_is_reported(app: FastAPI) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(Unavailable, match="can't listen"):
            await serve(app, port=other.getsockname()[1])


async def test_loops_run_with_the_service_and_are_part_of_readiness(clock: ManualClock) -> None:
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1

    loops = BackgroundLoops(clock=clock)
    loops.add("counting", work, every=timedelta(seconds=1), stalled_after=timedelta(seconds=5))
    app = create_service("test", version="1", clock=clock, loops=loops)
    async with app.router.lifespan_context(app), client_of(app) as http:
        await clock.turn(timedelta(seconds=3))
        assert (await http.get("/readyz")).json()["checks"] == {"loops": "ok"}
        assert rounds == 4
    await clock.turn(timedelta(seconds=60))
    assert rounds == 4


SLOW_SERVICE = """
    import asyncio
    import resource
    from datetime import timedelta
    from protocol.runtime.logs import configure_logs
    from protocol.http.serving.service import create_service, run_service

    configure_logs()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    app = create_service("slow", version="1")

    @app.get("/slow")
    async def slow() -> str:
        print("begun", flush=True)
        await asyncio.sleep(0.5)
        return "finished"

    @app.get("/poll")
    async def poll() -> str:
        print("begun", flush=True)
        await app.state.stopping.wait()
        return "stopping"

    run_service(app, on_bound=lambda port: print(port, flush=True), drain=timedelta(seconds=10))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    print("clean" if soft == hard and app.state.serving.guard.most > 256 else f"{soft} open files", flush=True)
"""


@pytest.mark.parametrize(("path", "answer"), [("/slow", "finished"), ("/poll", "stopping")])
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_waits_for_open_requests(path: str, answer: str, sign: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(SLOW_SERVICE),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(90), httpx.AsyncClient(timeout=60) as http:
            port = int(await process.stdout.readline())
            asking = asyncio.create_task(http.get(f"http://127.0.0.1:{port}{path}"))
            assert await process.stdout.readline() == b"begun\n"
            process.send_signal(sign)
            assert (await asking).json() == answer
            assert await process.stdout.readline() == b"clean\n"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_docs_page_works_offline_in_a_sandbox_apart_from_the_services_origin(http: httpx.AsyncClient) -> None:
    """Otherwise its scripts could read data that pages of the same origin store."""
    docs = await http.get("/docs")
    assert docs.headers["content-security-policy"] == "sandbox allow-scripts allow-popups"
    assert "openapi.json" in docs.text
    assert "//" not in re.sub("<!--.*?-->", "", docs.text), "no other host"
    named = re.findall(r'(?:src|href)="([^"]+)"', docs.text)
    assert set(named) == {"docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "data:,"}
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        asset = await http.get(f"/docs/{name}")
        assert asset.headers["content-type"].startswith("text/"), name
        assert sha256(asset.content).hexdigest() == SWAGGER_UI[name], "the file of the release in swagger_ui/README.md"
        assert asset.headers["x-content-type-options"] == "nosniff"
    for name in ("README.md", "LICENSE", "..%2fdocs_page.py"):
        assert (await http.get(f"/docs/{name}")).status_code == 404
    schema = await http.get("/openapi.json", headers={"Origin": "null"})
    assert schema.headers["access-control-allow-origin"] == "*"
    assert (await http.get("/healthz", headers={"Origin": "null"})).headers.get("access-control-allow-origin") is None


async def test_a_head_has_the_headers_of_a_get_and_no_body() -> None:
    app = create_service("test", version="1")

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def pieces() -> AsyncIterator[str]:
            while True:
                yield "piece"

        return StreamingResponse(pieces(), media_type="text/plain")

    @app.post("/orders")
    async def order() -> None: ...

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("hunter2")

    def fixed(answer: httpx.Response) -> dict[str, str]:
        return {name: value for name, value in answer.headers.items() if name != "x-request-id"}

    async with client_of(app) as http:
        for path, status in (
            ("/healthz", 200),
            ("/openapi.json", 200),
            ("/x", 404),
            ("/healthz?x=1", 422),
            ("/broken", 500),
        ):
            get, head = await http.get(path), await http.head(path)
            assert (get.status_code, head.status_code, head.content) == (status, status, b"")
            assert fixed(head) == fixed(get), path
        answer = await http.head("/stream")
        assert (answer.status_code, answer.content) == (200, b"")
        refused = await http.delete("/healthz")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert (await http.head("/orders")).headers["allow"] == "POST"
        assert (
            'muster_http_answers_total{method="HEAD",route="/stream",status="200"} 1.0'
            in (await http.get("/metrics")).text
        )
    with served(app) as url:
        async with httpx.AsyncClient(base_url=url) as real:
            for path in ("/healthz", "/stream", "/x"):
                assert (await real.head(path)).content == b""
                assert (await real.get("/healthz")).json()["status"] == "ok", "no rest of a body is on the connection"
