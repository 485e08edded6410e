"""Client: retries, rejected answers without a valid signature, and the service's errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI

from protocol.errors import Forbidden, InvalidInput, MusterError, NotFound, RateLimited, Unauthenticated, Unprocessable
from protocol.http.client import (
    BadAnswer,
    BearerToken,
    NoAnswer,
    ServiceClient,
    Unreachable,
)
from protocol.http.location import ServiceLocation, check_service_url
from protocol.http.problems import MEDIA_TYPE, Problem, error_of, problem_of
from protocol.http.trust import authorities
from protocol.http.url_safety import is_loopback
from protocol.identity.signing import sign_response
from protocol.runtime.clock import ManualClock
from protocol.runtime.retry import Backoff
from protocol.wire.identity import ServiceIdentity
from tests.protocol.conftest import NODE, OTHER_SERVICE, SERVICE, STRANGER, Note, Seen

Handler = Callable[[httpx.Request], httpx.Response]
QUICK = Backoff(attempts=3, first=timedelta(0), most=timedelta(0))


def client_of(handler: Handler, clock: ManualClock, *, backoff: Backoff = QUICK, limit: int = 1000) -> ServiceClient:
    return ServiceClient(
        ServiceLocation("http://127.0.0.1:1", SERVICE.address),
        key=NODE,
        clock=clock,
        backoff=backoff,
        answer_limit=limit,
        transport=httpx.MockTransport(handler),
    )


def problem(status: int, code: str, *, retryable: bool) -> httpx.Response:
    body = Problem(status=status, code=code, detail="why", hint="what to do", retryable=retryable)
    return httpx.Response(status, content=body.model_dump_json(), headers={"Content-Type": MEDIA_TYPE})


class Script:
    """Gives scripted answers in order, and records the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def service(app: FastAPI, clock: ManualClock) -> AsyncIterator[ServiceClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    location = ServiceLocation("http://localhost", SERVICE.address)
    async with ServiceClient(location, key=NODE, clock=clock, backoff=QUICK, transport=transport) as client:
        yield client


async def test_a_real_service_accepts_the_clients_signatures(service: ServiceClient) -> None:
    for query in ({}, {"q": "a b/ü&=?", "n": 1}):
        answer = await service.get("/v1/notes", query=query)
        assert answer.read(Seen).address == NODE.address
    answer = await service.put("/v1/notes", Note(text="hello"), signed_answer=True)
    assert answer.read(Seen) == Seen(address=NODE.address, text="hello")


async def test_an_unsigned_answer_is_rejected_where_a_signed_one_is_required(service: ServiceClient) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await service.get("/v1/notes", signed_answer=True)
    assert caught.value.code == "unsigned-answer"


async def test_errors_of_the_service_are_raised_as_the_same_error_classes(service: ServiceClient) -> None:
    with pytest.raises(Unprocessable) as caught:
        await service.post("/v1/notes", b'{"text": 5}')
    assert list(caught.value.fields) == ["text"]
    with pytest.raises(NotFound):
        await service.get("/nowhere")
    with pytest.raises(MusterError) as inside:
        await service.get("/v1/broken")
    assert inside.value.code == "internal"


BODY = b'{"address":"me","text":"run this"}'


def signed_by_the_service(request: httpx.Request, *, status: int = 200, body: bytes = BODY) -> dict[str, str]:
    return sign_response(
        SERVICE, address=NODE.address, nonce=request.headers["X-Muster-Nonce"], status=status, body=body
    )


FORGERIES: dict[str, Handler] = {
    "no signature": lambda request: httpx.Response(200, content=BODY),
    "signed by another": lambda request: httpx.Response(
        200,
        content=BODY,
        headers=sign_response(
            OTHER_SERVICE, address=NODE.address, nonce=request.headers["X-Muster-Nonce"], status=200, body=BODY
        ),
    ),
    "another body": lambda request: httpx.Response(
        200, content=BODY.replace(b"this", b"that"), headers=signed_by_the_service(request)
    ),
    "another status": lambda request: httpx.Response(201, content=BODY, headers=signed_by_the_service(request)),
    "for an earlier request": lambda request: httpx.Response(
        200,
        content=BODY,
        headers=sign_response(SERVICE, address=NODE.address, nonce="0" * 32, status=200, body=BODY),
    ),
    "for another asker": lambda request: httpx.Response(
        200,
        content=BODY,
        headers=sign_response(
            SERVICE, address=STRANGER.address, nonce=request.headers["X-Muster-Nonce"], status=200, body=BODY
        ),
    ),
    "signature of zeros": lambda request: httpx.Response(
        200, content=BODY, headers={"X-Muster-Signature": "0x" + "00" * 65}
    ),
    "signature cut short": lambda request: httpx.Response(
        200, content=BODY, headers={"X-Muster-Signature": signed_by_the_service(request)["X-Muster-Signature"][:-2]}
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_forged_answers_are_rejected(name: str, clock: ManualClock) -> None:
    async with client_of(FORGERIES[name], clock) as client:
        with pytest.raises(Unauthenticated):
            await client.post("/v1/heartbeat", Note(text="x"), signed_answer=True)
    honest = client_of(lambda request: httpx.Response(200, content=BODY, headers=signed_by_the_service(request)), clock)
    assert (await honest.post("/v1/heartbeat", Note(text="x"), signed_answer=True)).body == BODY


async def test_a_signed_answer_can_be_required_only_for_a_signed_request() -> None:
    async with ServiceClient("http://127.0.0.1:1", token="mst_x") as client:
        with pytest.raises(InvalidInput):
            await client.get("/", signed_answer=True)


def test_a_client_needs_either_a_key_or_a_token() -> None:
    with pytest.raises(InvalidInput):
        ServiceClient("http://127.0.0.1:1")
    with pytest.raises(InvalidInput):
        ServiceClient("http://127.0.0.1:1", key=NODE, token="mst_x")


GOOD = httpx.Response(200, content=BODY)


@pytest.mark.parametrize(
    ("method", "trouble", "asked"),
    [
        ("GET", httpx.ConnectError("refused"), 2),
        ("POST", httpx.ConnectError("refused"), 2),
        ("GET", httpx.ReadTimeout("slow"), 2),
        ("POST", httpx.ReadTimeout("slow"), 1),
        ("POST", httpx.RemoteProtocolError("hung up"), 1),
        ("POST", problem(503, "store-unavailable", retryable=True), 2),
        ("POST", problem(503, "broken", retryable=False), 1),
        ("GET", problem(409, "replayed", retryable=False), 2),
        ("POST", problem(409, "replayed", retryable=False), 1),
        ("GET", problem(409, "conflict", retryable=False), 1),
        ("GET", httpx.Response(502, content="<html>"), 2),
        ("GET", httpx.Response(404, content="<html>"), 1),
        ("GET", httpx.Response(302, headers={"Location": "http://evil.example"}), 1),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, httpx.Response) else str(value.status_code),
)
async def test_only_idempotent_requests_are_retried_and_only_on_retryable_errors(
    method: str, trouble: httpx.Response | Exception, asked: int, clock: ManualClock
) -> None:
    script = Script(trouble, GOOD)
    async with client_of(script, clock) as client:
        calling = client.call(method, "/v1/x")
        if asked == 2:
            assert (await calling).status == 200
        else:
            with pytest.raises(MusterError):
                await calling
    assert len(script.requests) == asked


@pytest.mark.parametrize(
    ("method", "first", "code", "done"),
    [
        ("DELETE", httpx.ReadTimeout("slow"), "unknown-task", True),
        ("DELETE", problem(503, "store-unavailable", retryable=True), "unknown-task", True),
        ("DELETE", httpx.ConnectError("refused"), "unknown-task", False),
        ("DELETE", httpx.ReadTimeout("slow"), "not-found", False),
        ("GET", httpx.ReadTimeout("slow"), "unknown-task", False),
    ],
)
async def test_a_repeated_delete_that_finds_nothing_has_succeeded(
    method: str, first: httpx.Response | Exception, code: str, done: bool, clock: ManualClock
) -> None:
    async with client_of(Script(first, problem(404, code, retryable=False)), clock) as client:
        if done:
            assert (await client.call(method, "/v1/tasks/x")).status == 204
        else:
            with pytest.raises(NotFound):
                await client.call(method, "/v1/tasks/x")


async def test_each_attempt_has_a_new_signature(clock: ManualClock) -> None:
    script = Script(httpx.ConnectError("refused"), httpx.ConnectError("refused"), GOOD)
    async with client_of(script, clock) as client:
        await client.get("/v1/x")
    assert len({request.headers["X-Muster-Nonce"] for request in script.requests}) == 3
    assert {request.headers["X-Muster-Version"] for request in script.requests} == {"1"}


async def test_the_number_of_attempts_is_bounded(clock: ManualClock) -> None:
    script = Script(*(httpx.ConnectError("refused") for _ in range(9)))
    async with client_of(script, clock) as client:
        with pytest.raises(Unreachable) as caught:
            await client.get("/v1/x")
    assert len(script.requests) == 3
    assert caught.value.hint


async def test_the_client_waits_for_retry_after(clock: ManualClock) -> None:
    limited = problem(429, "rate-limited", retryable=True)
    limited.headers["Retry-After"] = "7"
    async with client_of(Script(limited, GOOD), clock) as client:
        task = asyncio.create_task(client.get("/v1/x"))
        await clock.turn(timedelta(seconds=6))
        assert not task.done()
        await clock.turn(timedelta(seconds=2))
        assert (await task).status == 200


async def test_an_endlessly_slow_answer_times_out(clock: ManualClock) -> None:
    class Drip(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.Event().wait()

    async with client_of(lambda request: httpx.Response(200, stream=Drip()), clock) as client:
        task = asyncio.create_task(client.post("/v1/x", attempt_timeout=timedelta(seconds=5)))
        await clock.turn(timedelta(seconds=6))
        with pytest.raises(NoAnswer):
            await task


async def test_the_look_up_of_the_services_address_counts_for_the_deadline(clock: ManualClock) -> None:
    asked: list[str] = []

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            await clock.sleep(timedelta(seconds=2))
            identity = ServiceIdentity(
                service="discovery", address=SERVICE.address, chain_id=1, contract=OTHER_SERVICE.address
            )
            return httpx.Response(200, content=identity.model_dump_json())

    async with ServiceClient("http://127.0.0.1:1", key=NODE, clock=clock, backoff=QUICK, transport=Slow()) as client:
        task = asyncio.create_task(client.get("/v1/x", call_timeout=timedelta(seconds=3)))
        await clock.turn(timedelta(seconds=2))
        assert asked == ["/v1/identity", "/v1/x"]
        await clock.turn(timedelta(seconds=1))
        assert task.done()
        with pytest.raises(NoAnswer):
            await task


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b"x" * 1001),
        httpx.Response(200, content=b"x", headers={"Content-Encoding": "br"}),
    ],
    ids=["too large", "compressed"],
)
async def test_the_size_of_answers_is_bounded(answer: httpx.Response, clock: ManualClock) -> None:
    async with client_of(Script(answer), clock) as client:
        with pytest.raises(BadAnswer):
            await client.get("/v1/x")


async def test_an_answer_of_the_wrong_schema_is_a_bad_answer(clock: ManualClock) -> None:
    async with client_of(Script(httpx.Response(200, content=b'{"text": 1}')), clock) as client:
        answer = await client.get("/v1/x")
        with pytest.raises(BadAnswer, match="Seen"):
            answer.read(Seen)


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://pool.example", True),
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://localhost", True),
        ("http://pool.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://10.0.0.1", False),
        ("ftp://pool.example", False),
        ("https://user:pw@pool.example", False),
        ("https://pool.example/?a=1", False),
        ("pool.example", False),
        ("http://", False),
        ("http://[", False),
    ],
)
def test_only_https_or_local_services_are_allowed(url: str, taken: bool) -> None:
    if taken:
        check_service_url(url)
        return
    with pytest.raises(InvalidInput) as caught:
        check_service_url(url)
    assert "pw@" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("localhost", True),
        ("Node.localhost", True),
        ("localhost.example", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("", False),
    ],
)
def test_this_machine_has_several_names_and_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_plain_http_needs_explicit_permission() -> None:
    check_service_url("http://10.0.0.1", allow_plain_http=True)


def test_a_tokens_repr_hides_it() -> None:
    assert "mst_" not in repr(BearerToken("mst_secret"))


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("a", hint="b", code="c-d"),
        Forbidden("a", hint="b"),
        RateLimited("a", retry_after=timedelta(seconds=3)),
        Unprocessable("a", fields={"b": "c"}, hint="d"),
        NoAnswer("a", hint="b", retryable=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_serialisation(error: MusterError) -> None:
    again = error_of(Problem.model_validate_json(problem_of(error).model_dump_json()))
    assert (again.code, again.detail, again.hint, again.retryable, again.status) == (
        error.code,
        error.detail,
        error.hint,
        error.retryable,
        error.status,
    )
    if isinstance(error, RateLimited):
        assert isinstance(again, RateLimited)
        assert again.retry_after == error.retry_after


async def test_only_a_client_of_https_or_behind_a_proxy_loads_certificate_authorities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = Mock(wraps=ssl.create_default_context)
    monkeypatch.setattr(ssl, "create_default_context", load)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for url, proxy, loads in (
        ("http://127.0.0.1:1", None, False),
        ("https://pool.example", None, True),
        ("http://127.0.0.1:1", "http://127.0.0.1:2", True),
    ):
        load.reset_mock()
        authorities.cache_clear()
        if proxy is not None:
            monkeypatch.setenv("http_proxy", proxy)
        async with ServiceClient(url, key=NODE):
            assert load.called == loads, (url, proxy)
    assert authorities() is authorities()
