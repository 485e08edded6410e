"""Compatibility of releases: tolerant readers, agreed versions, announced ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI, Request
from pydantic import ValidationError

import protocol.wire
from protocol.clients.orchestrator import OrchestratorClient
from protocol.enumerations import WireEnum
from protocol.errors import InvalidInput
from protocol.http.deprecation import Deprecation
from protocol.http.serving.service import create_service
from protocol.http.verification import FastResponse
from protocol.identifiers import ZERO_DIGEST
from protocol.identity.scopes import Scope
from protocol.versions import VersionRange
from protocol.wire.base import SignedModel, WireModel, parse_answer
from protocol.wire.served import ServedList, ServedRequest, SignedServedList
from protocol.wire.uploads import UploadRequest
from tests.kit.wire_examples import LATER, LATER_VALUE, enumerations, example, wire_models

MODULES = (
    *(f"protocol.wire.{module.name}" for module in iter_modules(protocol.wire.__path__)),
    "worker.control",
    "worker.situation",
    "shardcast.download.peer_client",
    "validator.api.views",
)
for _name in MODULES:
    import_module(_name)
MODELS = wire_models(MODULES)
WITH_ENUMERATIONS = [model for model in MODELS if any(enumerations(model)) and model is not UploadRequest]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_an_unknown_field_at_any_depth_of_an_answer_is_ignored(model: type[WireModel]) -> None:
    plain, newer = json.dumps(example(model)), json.dumps(example(model, extra=True))
    assert LATER in newer
    assert parse_answer(model, newer) == parse_answer(model, plain)
    with pytest.raises(ValidationError):
        model.model_validate_json(newer)


@pytest.mark.parametrize("model", WITH_ENUMERATIONS, ids=lambda model: model.__name__)
def test_an_unknown_value_of_an_enumeration_is_kept_in_an_answer_and_refused_in_a_request(
    model: type[WireModel],
) -> None:
    newer = json.dumps(example(model, later_values=True))
    assert LATER_VALUE in newer
    assert LATER_VALUE in parse_answer(model, newer).model_dump_json()
    with pytest.raises(ValidationError):
        model.model_validate_json(newer)


def test_signed_models_have_no_enumerations() -> None:
    """An unknown value could change the meaning of the signed content, so it would have to be refused."""
    strict = {ServedRequest, ServedList}  # `SignedServedList` carries their text, which `parse` reads strictly
    assert [model for model in SignedModel.__subclasses__() if any(enumerations(model)) and model not in strict] == []
    later = {
        "id": "0" * 32,
        "kind": LATER_VALUE,
        "body": "{}",
        "seed": ZERO_DIGEST,
        "choices": 1,
        "answer": ZERO_DIGEST,
    }
    signed = SignedServedList(content=json.dumps({"requests": [later]}), signature="0x" + "11" * 65)
    with pytest.raises(InvalidInput, match=r"requests\.0\.kind"):
        signed.parse()


@pytest.mark.parametrize("value", ["", "UPPER", "a b", "x" * 41, "\x1b[2J", 7, None])
def test_an_unknown_value_that_is_no_word_is_malformed(value: object) -> None:
    class Holder(WireModel):
        scope: Scope

    with pytest.raises(ValidationError):
        parse_answer(Holder, json.dumps({"scope": value}))


def test_an_unknown_value_equals_no_member_and_an_unknown_scope_includes_nothing() -> None:
    class Holder(WireModel):
        scope: Scope

    unknown = parse_answer(Holder, '{"scope": "audit"}').scope
    assert (str(unknown), unknown.value, unknown.is_known) == ("audit", "audit", False)
    assert unknown not in set(Scope)
    assert not any(unknown.includes(each) for each in Scope)
    assert all(each.is_known for each in Scope)
    assert issubclass(Scope, WireEnum)


SINCE, SUNSET = datetime(2027, 1, 1, tzinfo=UTC), datetime(2027, 7, 1, tzinfo=UTC)
LINK = "https://docs.example/2"
MARKS = {"deprecation": "@1798761600", "sunset": "Thu, 01 Jul 2027 00:00:00 GMT"}


def end(**subject: Any) -> Deprecation:
    return Deprecation(**{"since": SINCE, "sunset": SUNSET, "link": LINK, **subject})


async def fast(_scope: object, _receive: object) -> FastResponse:
    return FastResponse(status=200, headers=[(b"content-length", b"0")], body=b"")


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """Returns a client of a service that supports versions 1 and 2, and ends version 1 and two routes."""
    app = create_service(
        "test",
        version="1",
        versions=VersionRange(1, 2),
        deprecations=[end(version=1), end(route=("GET", "/v1/old/{name}")), end(route=("POST", "/v1/fast"))],
        fast_routes={("POST", "/v1/fast"): fast},
    )
    add_routes(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://service") as client:
        yield client


def add_routes(app: FastAPI) -> None:
    @app.get("/v1/shaped")
    async def shaped(request: Request) -> dict[str, int]:
        return {"version": request.state.protocol_version}

    @app.get("/v1/old/{name}")
    @app.put("/v1/old/{name}")
    async def old(name: str) -> str:
        return name


@pytest.mark.parametrize(("spoken", "agreed"), [("1", 1), ("2", 2), ("1-7", 2), (None, 2)])
async def test_a_route_and_the_client_learn_the_agreed_version(
    spoken: str | None, agreed: int, http: httpx.AsyncClient
) -> None:
    answer = await http.get("/v1/shaped", headers={} if spoken is None else {"X-Muster-Version": spoken})
    assert answer.json() == {"version": agreed}
    assert (answer.headers["x-muster-agreed-version"], answer.headers["x-muster-version"]) == (str(agreed), "1-2")
    assert marks(answer) == (MARKS if agreed == 1 else {})


def marks(answer: httpx.Response) -> dict[str, str]:
    found = {name: answer.headers[name] for name in MARKS if name in answer.headers}
    assert answer.headers.get("link") == (f'<{LINK}>; rel="deprecation"; type="text/html"' if found else None)
    return found


@pytest.mark.parametrize(
    ("method", "path", "marked"),
    [
        ("GET", "/v1/old/x", True),
        ("PUT", "/v1/old/x", False),
        ("GET", "/v1/old/x/y", False),
        ("POST", "/v1/fast", True),
        ("GET", "/healthz", False),
    ],
)
async def test_a_deprecated_route_announces_its_end(
    method: str, path: str, marked: bool, http: httpx.AsyncClient
) -> None:
    answer = await http.request(method, path)
    assert marks(answer) == (MARKS if marked else {})
    assert ("x-muster-agreed-version" in answer.headers) is (path != "/healthz")


async def test_without_a_common_version_none_is_agreed(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/shaped", headers={"X-Muster-Version": "9"})
    assert answer.status_code == 426
    assert "x-muster-agreed-version" not in answer.headers


@pytest.mark.parametrize("wrong", [{}, {"version": 1, "since": SUNSET, "sunset": SINCE}])
def test_a_deprecation_without_subject_or_with_reversed_times_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        end(**wrong)


async def test_a_client_logs_an_announced_end_once() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={}, headers={**MARKS, "Link": "<x>"})

    transport = httpx.MockTransport(answer)
    with structlog.testing.capture_logs() as logs:
        async with OrchestratorClient("https://pool.example", token="t" * 20, transport=transport) as client:
            for _ in range(3):
                await client.get("/v1/pool")
    (told,) = [line for line in logs if line["event"] == "deprecated"]
    assert (told["path"], told["sunset"]) == ("/v1/pool", MARKS["sunset"])
