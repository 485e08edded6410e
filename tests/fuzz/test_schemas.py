"""The OpenAPI schemas of all services are complete, and their requests have no unknown fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from protocol.http.openapi import BodyDeclaration
from protocol.http.serving.service import add_routes, create_service
from tests.fuzz import test_discovery, test_orchestrator
from tests.kit.openapi import dangling_references, lenient_requests, reachable
from validator.api.routes import router


def validator(_home: Path) -> FastAPI:
    app = create_service("validator", version="1")
    add_routes(app, router)
    return app


SERVICES: dict[str, Callable[[Path], FastAPI]] = {
    "discovery": lambda _home: test_discovery.build(),
    "orchestrator": lambda home: test_orchestrator.build("redis://127.0.0.1:1/0", home),
    "validator": validator,
}


@pytest.mark.parametrize("service", SERVICES)
def test_every_schema_is_declared_and_every_request_is_strict(service: str, tmp_path: Path) -> None:
    schema = SERVICES[service](tmp_path).openapi()
    assert dangling_references(schema) == set()
    assert lenient_requests(schema) == set()


@pytest.fixture(params=SERVICES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> FastAPI:
    return SERVICES[request.param](tmp_path)


def operations(app: FastAPI) -> Iterator[tuple[APIRoute, dict[str, Any]]]:
    paths = app.openapi()["paths"]
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema]
    assert len(routes) > 5
    for route in routes:
        for method in route.methods:
            yield route, paths[route.path_format][method.lower()]


def test_operations_have_readable_ids_and_descriptions(app: FastAPI) -> None:
    ids = [operation["operationId"] for _, operation in operations(app)]
    assert len(set(ids)) == len(ids)
    assert [each for each in ids if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", each)] == []
    assert [operation["operationId"] for _, operation in operations(app) if not operation.get("description")] == []


def test_every_operation_has_valid_examples(app: FastAPI) -> None:
    for route, operation in operations(app):
        for parameter in operation.get("parameters", ()):
            if parameter["required"]:
                jsonschema_rs.validate({**parameter["schema"], "components": {}}, parameter["example"])
        if isinstance(route.openapi_extra, BodyDeclaration):
            example = operation["requestBody"]["content"]["application/json"]["example"]
            assert route.openapi_extra.model.model_validate_json(json.dumps(example)), operation["operationId"]
        answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        for media_type, content in (item for answer in answers for item in answer.get("content", {}).items()):
            if media_type == "application/json" and route.response_model is not None:
                TypeAdapter(route.response_model).validate_json(json.dumps(content["example"]))
        assert "example" in operation["responses"]["default"]["content"]["application/problem+json"]


def test_security_requirements_agree_with_what_routes_check(app: FastAPI) -> None:
    schemes = app.openapi()["components"]["securitySchemes"]
    public = set()
    for route, operation in operations(app):
        assert {name for each in operation["security"] for name in each} <= schemes.keys()
        if not operation["security"]:
            public.add(route.path_format)
    expected = {"/healthz", "/readyz", "/metrics"} | ({"/v1/identity"} if "validator" not in app.title else set())
    if "orchestrator" in app.title:
        expected |= {"/v1/public", "/v1/me/sessions"}  # the latter takes a login code in its body
    assert public == expected


def test_integers_of_64_bits_have_their_format_and_exact_bounds(app: FastAPI) -> None:
    found = list(integers(app.openapi()))
    assert found
    for schema in found:
        most = schema.get("maximum", schema.get("exclusiveMaximum", 2**63))
        assert (schema.get("format") == "int64") == (most >= 2**31)
        assert not any(isinstance(bound, float) for bound in schema.values())
        assert most <= 2**63


def integers(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict) and part.get("type") == "integer":
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from integers(each)


def test_only_signed_documents_are_closed_in_answers(app: FastAPI) -> None:
    schemas = app.openapi()["components"]["schemas"]
    answers = [
        answer.get("content", {}).get("application/json", {})
        for _, operation in operations(app)
        for answer in operation["responses"].values()
    ]
    closed = {name for name in reachable(answers, schemas) if schemas[name].get("additionalProperties") is False}
    assert closed <= {"SignedInvite", "SignedLease", "NodeStatement"}


def test_streams_and_scopes_are_declared(tmp_path: Path) -> None:
    paths = SERVICES["orchestrator"](tmp_path).openapi()["paths"]
    streams = {
        operation["operationId"]
        for path in paths.values()
        for operation in path.values()
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    }
    assert streams == {"getAssignmentLogs", "getNodeLogs", "listEvents"}
    expected = {
        ("post", "/v1/tasks"): [{"token": ["operate"]}, {"signature": []}],
        ("get", "/v1/tasks"): [{"token": ["read"]}, {"signature": []}],
        ("post", "/v1/webhooks"): [{"token": ["admin"]}, {"signature": []}],
        ("post", "/v1/heartbeat"): [{"signature": []}],
        ("get", "/v1/objects"): [{"token": ["read"]}, {"signature": []}],
        ("put", "/v1/blobs/{key}"): [{"presignedUrl": []}],
    }
    assert {(method, path): paths[path][method]["security"] for method, path in expected} == expected
