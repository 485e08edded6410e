"""Event streams, the validator's routes and shardcast's routes agree with recorded requests and answers of releases.

Today's services accept the recorded requests, and their answers still have every recorded field. Today's clients read
the recorded answers, and find the value of every field. `exchanges/0.1.0.json` is from November 2026, before 0.1.0 was
released. When a release is tagged, record it once, and keep the file:

    MUSTER_RECORD=1 python -m pytest tests/protocol/test_recorded_exchanges.py -n 0

`test_recorded_requests.py` covers the requests of the other clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from pydantic import BaseModel

from protocol import __version__
from protocol.clients.orchestrator import OrchestratorClient
from protocol.clients.streams import EventReader
from protocol.http.client import RequestSigner, ServiceClient
from protocol.http.location import ServiceLocation
from protocol.identifiers import address
from protocol.runtime.clock import ManualClock
from shardcast.client import Client
from shardcast.download.peer_client import PeerClient
from shardcast.origin import Origin
from shardcast.serve.server import PROBE_BYTES
from tests.kit.orchestrator import TOKEN, MakePool
from tests.kit.shardcast import complete, eventually, read_folder, relay_of, write_folder
from tests.kit.terminal import serving
from tests.kit.validators import PoolWithValidators
from validator.api.views import ParkedList, Resolve, StatusView, Unparked
from validator.examination.interface import NotJudged

FOLDER = Path(__file__).parent / "exchanges"
RECORDING = os.environ.get("MUSTER_RECORD") == "1"
RELEASES = [FOLDER / f"{__version__}.json"] if RECORDING else sorted(FOLDER.glob("*.json"))
FILES = {"model.safetensors": bytes(range(256)) * 2, "tokenizer/config.json": b"{}", "empty": b""}
LEFT_OUT = {"host", "connection", "user-agent", "content-length", "authorization"}
"""Header fields that are of the connection, or secrets of a service."""

Exchange = dict[str, Any]

releases = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)


def lost(recorded: Any, now: Any, *, values: bool = False, at: str = "") -> list[str]:
    """Returns the places of recorded fields that are missing, or have another JSON type or (with `values`) value."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        pairs = [(f"{at}.{name}", value, now.get(name, ...)) for name, value in recorded.items()]
    elif isinstance(recorded, list) and isinstance(now, list):
        pairs = [(f"{at}[{n}]", value, now[n] if n < len(now) else ...) for n, value in enumerate(recorded)]
    elif values:
        return [] if recorded == now else [at]
    else:
        number = isinstance(recorded, (int, float)) and isinstance(now, (int, float))
        return [] if number or None in (recorded, now) or type(recorded) is type(now) else [at]
    return [
        place
        for where, before, after in pairs
        for place in ([where] if after is ... else lost(before, after, values=values, at=where))
    ]


def load(release: Path, part: str) -> list[Exchange]:
    found: list[Exchange] = json.loads(release.read_text())[part]
    return found


def record(part: str, exchanges: list[Exchange]) -> None:
    """Writes one part of this release's file."""
    assert exchanges
    path = FOLDER / f"{__version__}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {part: exchanges}, indent=1) + "\n")


def filled(text: str, names: dict[str, str]) -> str:
    """Returns a recorded text with the names of this test's nodes and items."""
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text


class Recorder(httpx.AsyncBaseTransport):
    """Forwards requests to a service, and stores them with the answers.

    Args:
        service: Transport of the service.
        names: Names in targets and bodies by their placeholders.
    """

    def __init__(self, service: httpx.AsyncBaseTransport, names: dict[str, str]) -> None:
        self._service = service
        self._names = {name: placeholder for placeholder, name in names.items()}
        self.found: list[Exchange] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._service.handle_async_request(request)
        body = await answer.aread()
        self.found.append(
            {
                "method": request.method,
                "target": filled(request.url.raw_path.decode(), self._names),
                "headers": {
                    name: value
                    for name, value in request.headers.items()
                    if name not in LEFT_OUT and (name == "x-muster-version" or not name.startswith("x-muster"))
                },
                "body": request.content.decode(),
                "status": answer.status_code,
                "answer": body.decode(),
            }
        )
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(body))


# Event streams of the orchestrator


def events_of(text: str) -> list[dict[str, Any]]:
    """Returns the events of a stream; ids that continue a stream are a field of their own."""
    return [
        {"id": bool(one.id), "name": one.name, "data": json.loads(one.data)}
        for one in EventReader().feed(text.encode())
    ]


class FirstEvents(httpx.AsyncBaseTransport):
    """Forwards requests over TCP; an answer ends after the first events of the stream."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        text = ""
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(trust_env=False) as http,
            http.stream(request.method, request.url, headers=request.headers) as answer,
        ):
            async for piece in answer.aiter_text():
                text += piece
                if answer.status_code != 200 or EventReader().feed(text.encode()):
                    break
        kind = answer.headers["content-type"]
        return httpx.Response(
            answer.status_code, headers={"content-type": kind}, stream=httpx.ByteStream(text.encode())
        )


@asynccontextmanager
async def turning(clock: ManualClock) -> AsyncIterator[None]:
    """Turns a clock forward, because a stream of logs waits for earlier lines that the node has not sent."""

    async def turn() -> None:
        while True:
            await clock.turn(timedelta(seconds=1))
            await asyncio.sleep(0.02)

    task = asyncio.create_task(turn())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def streams_of(client: OrchestratorClient, node: str) -> list[AsyncIterator[BaseModel]]:
    """Returns the streams that the client follows, in the order of the recording."""
    return [client.follow_events(after="0-0"), client.follow_logs(address(node))]


@releases
async def test_streams_of_events_and_logs(release: Path, make_pool: MakePool) -> None:
    pool = make_pool()
    node = await pool.member()
    await pool.run(replicas=1)
    beat = await pool.beat(node)
    assert beat.assignment is not None
    line = {"sequence": 0, "time_ms": 1, "stream": "stdout", "text": "a line"}
    assert (await pool.send(node, "/v1/logs", {"assignment_id": beat.assignment.id, "lines": [line]})).is_success
    names: dict[str, str] = {"{node}": node.address}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with serving(pool.app, listener), turning(pool.clock):
            if RECORDING:
                recorder = Recorder(FirstEvents(), names)
                async with OrchestratorClient(url, token=TOKEN, transport=recorder) as client:
                    for stream in streams_of(client, node.address):
                        await anext(stream)
                record("streams", recorder.found)
            for each in load(release, "streams"):
                headers = each["headers"] | {"authorization": f"Bearer {TOKEN}"}
                request = httpx.Request(each["method"], url + filled(each["target"], names), headers=headers)
                answer = await FirstEvents().handle_async_request(request)
                assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (
                    each["status"],
                    "text/event-stream",
                )
                assert lost(events_of(each["answer"]), events_of((await answer.aread()).decode())) == [], each["target"]


@releases
async def test_the_client_reads_recorded_streams(release: Path) -> None:
    recorded, node = load(release, "streams"), "0x" + "1" * 40
    for number, each in enumerate(recorded):

        def answer(_request: httpx.Request, text: str = each["answer"]) -> httpx.Response:
            stream = httpx.ByteStream(text.encode())
            return httpx.Response(200, stream=stream, headers={"content-type": "text/event-stream"})

        async with OrchestratorClient(
            "http://127.0.0.1:1", token=TOKEN, transport=httpx.MockTransport(answer)
        ) as client:
            stream = streams_of(client, node)[number]
            for event in events_of(each["answer"]):
                read = await anext(stream)
                assert lost(event["data"], read.model_dump(mode="json"), values=True) == [], each["target"]


# The validator


async def validator_calls(client: ServiceClient, item: str, other: str) -> list[BaseModel]:
    """Sends the requests of `muster validator status`, `parked`, `resolve` and `retry`; returns their answers."""
    decision = Resolve(outcome="accepted", words="seen by a person")
    return [
        (await client.call("GET", "/v1/status")).read(StatusView),
        (await client.call("GET", "/v1/parked")).read(ParkedList),
        (await client.call("POST", f"/v1/parked/{item}/resolve", body=decision)).read(Unparked),
        (await client.call("POST", f"/v1/parked/{other}/retry")).read(Unparked),
        (await client.call("POST", "/v1/parked/retry", query={"code": "no-calibration"})).read(Unparked),
    ]


@releases
async def test_routes_of_the_validator(release: Path, pool: PoolWithValidators) -> None:
    def parked() -> NotJudged:
        return NotJudged(code="no-calibration", why="no limits for it", retryable=False, hint="calibrate")

    for recording in [True, False] if RECORDING else [False]:
        validator = pool.validator(redis=2 if recording else 1)
        validator.examiner.otherwise = parked()
        for _ in range(3):
            await pool.submit()
        await validator.judge()
        item, other = (one["id"] for one in (await validator.get("/v1/parked")).json()["items"][:2])
        names = {"{item}": item, "{other}": other}
        service = httpx.ASGITransport(app=validator.app, raise_app_exceptions=False)
        clock, key = validator.dependencies.clock, validator.key
        if recording:
            recorder = Recorder(service, names)
            location = ServiceLocation("http://127.0.0.1:1", key.address)
            async with ServiceClient(location, key=key, clock=clock, transport=recorder) as client:
                await validator_calls(client, item, other)
            record("validator", recorder.found)
            continue
        signer = RequestSigner(key, audience=key.address, clock=clock)
        async with httpx.AsyncClient(transport=service, base_url="http://validator", auth=signer) as http:
            for each in load(release, "validator"):
                target, body = filled(each["target"], names), each["body"].encode()
                answer = await http.request(each["method"], target, headers=each["headers"], content=body)
                assert answer.status_code == each["status"], answer.text
                assert lost(json.loads(each["answer"]), answer.json()) == [], each["target"]


@releases
async def test_the_validators_client_reads_recorded_answers(release: Path) -> None:
    recorded = load(release, "validator")
    answers = iter(recorded)
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, text=next(answers)["answer"]))
    async with ServiceClient("http://127.0.0.1:1", token=TOKEN, transport=transport) as client:
        read = await validator_calls(client, "item", "other")
    for each, found in zip(recorded, read, strict=True):
        assert lost(json.loads(each["answer"]), found.model_dump(mode="json"), values=True) == [], each["target"]


# Shardcast


@asynccontextmanager
async def peer(answer: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    """Serves all paths with one function; yields the URL."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def proxy_of(origin: str, found: list[Exchange]) -> Callable[[web.Request], Any]:
    """Returns the handler of a proxy that stores requests and answers."""

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in LEFT_OUT}
        exchange: Exchange = {"target": request.path_qs, "headers": headers, "answer": ""}
        found.append(exchange)
        async with aiohttp.ClientSession() as http, http.get(origin + request.path_qs, headers=headers) as answer:
            names = {"Content-Type", "Content-Range", "Accept-Ranges"} & set(answer.headers)
            exchange |= {"status": answer.status, "answer_headers": {name: answer.headers[name] for name in names}}
            response = web.StreamResponse(status=answer.status, headers=exchange["answer_headers"])
            response.content_length = answer.content_length
            await response.prepare(request)
            body = b""
            async for piece in answer.content.iter_any():
                body += piece
                # The bytes of a probe are random, and only their number counts.
                exchange["answer"] = "" if request.path == "/v1/probe" else b64encode(body).decode()
                await response.write(piece)
            await response.write_eof()
        return response

    return forward


async def use_peer(url: str, client_of: Callable[..., Client], to: Path) -> None:
    """Sends every kind of request of shardcast's clients to a peer, and checks the fetched files."""
    async with PeerClient() as client:
        await client.probe(url)
        assert (await client.listing(url)).versions
        assert (await anext(client.listings(url))).versions
    async with client_of(url) as client:
        await client.latest()
        fetched = await client.fetch(1, to)
    assert read_folder(fetched.path) == FILES


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines() if line]


@releases
async def test_routes_of_origins_and_relays(
    release: Path, origin: Origin, stack: AsyncExitStack, client_of: Callable[..., Client], tmp_path: Path
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    if RECORDING:
        found: list[Exchange] = []
        async with peer(proxy_of(origin.url, found)) as url:
            await use_peer(url, client_of, tmp_path / "recorded")
        different = {each["target"] + each["headers"].get("Range", ""): each for each in found}
        record("shardcast", list(different.values()))
    relay = await stack.enter_async_context(relay_of(tmp_path / "relay", origin.url))
    await eventually(lambda: complete(relay, 1))
    for url in (origin.url, relay.url):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http:
            for each in load(release, "shardcast"):
                recorded = b64decode(each["answer"]) or bytes(PROBE_BYTES)
                async with http.get(url + each["target"], headers=each["headers"]) as answer:
                    assert answer.status == each["status"], each["target"]
                    assert lost(each["answer_headers"], dict(answer.headers), values=True) == []
                    body = b""
                    while len(body) < len(recorded) and (piece := await answer.content.readany()):
                        body += piece
                if "json" in each["answer_headers"]["Content-Type"]:
                    assert lost(lines(recorded), lines(body)) == [], each["target"]
                else:
                    assert len(body) == len(recorded)


@releases
async def test_the_client_fetches_a_version_from_recorded_answers(
    release: Path, client_of: Callable[..., Client], tmp_path: Path
) -> None:
    answers = {each["target"] + each["headers"].get("Range", ""): each for each in load(release, "shardcast")}

    async def answer(request: web.Request) -> web.StreamResponse:
        each = answers.get(request.path_qs + request.headers.get("Range", ""))
        if each is None:
            return web.Response(status=404)
        body = b64decode(each["answer"]) or bytes(PROBE_BYTES)
        response = web.StreamResponse(status=each["status"], headers=each["answer_headers"])
        response.content_length = None if "follow" in request.query else len(body)
        await response.prepare(request)
        await response.write(body)
        if "follow" in request.query:  # the stream goes on until the client closes it
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 60)
        return response

    async with peer(answer) as url:
        await use_peer(url, client_of, tmp_path)


def test_a_missing_renamed_or_changed_field_is_noticed() -> None:
    recorded = {"a": 1, "b": [{"c": "x"}], "d": None}
    assert lost(recorded, {"a": 2.5, "b": [{"c": "y", "e": 1}], "d": {}}) == []
    assert lost(recorded, {"b": [{"C": "x"}], "d": None}) == [".a", ".b[0].c"]
    assert lost(recorded, {"a": "1", "b": [], "d": 0}) == [".a", ".b[0]"]
    assert lost(recorded, {"a": 1, "b": [{"c": "y"}], "d": None}, values=True) == [".b[0].c"]
