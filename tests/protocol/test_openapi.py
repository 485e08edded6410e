"""OpenAPI schemas of services: request bodies that routes parse themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from protocol.http.openapi import json_body
from protocol.http.serving.service import create_service
from protocol.wire.base import WireModel
from tests.kit.openapi import dangling_references, lenient_requests


class Part(WireModel):
    number: int


class Order(WireModel):
    part: Part


class Note(WireModel):
    text: str


class Receipt(WireModel):
    order: Order


@pytest.fixture
def schema() -> dict[str, Any]:
    router = APIRouter()

    @router.post("/orders", openapi_extra=json_body(Order))
    async def order() -> Receipt:
        raise NotImplementedError

    @router.post("/notes", openapi_extra=json_body(Note, required=False))
    async def note() -> None:
        raise NotImplementedError

    app: FastAPI = create_service("test", version="1")
    app.include_router(router, prefix="/v1")
    return app.openapi()


def body_of(schema: dict[str, Any], path: str) -> tuple[bool, str]:
    body = schema["paths"][path]["post"]["requestBody"]
    return body["required"], body["content"]["application/json"]["schema"]["$ref"]


def test_bodies_of_included_routes_are_declared(schema: dict[str, Any]) -> None:
    assert body_of(schema, "/v1/notes") == (False, "#/components/schemas/Note")
    assert schema["components"]["schemas"]["Note"]["additionalProperties"] is False
    assert dangling_references(schema) == set()


def test_a_model_of_requests_and_answers_is_strict_in_requests_only(schema: dict[str, Any]) -> None:
    schemas = schema["components"]["schemas"]
    assert body_of(schema, "/v1/orders") == (True, "#/components/schemas/Order-Input")
    assert schemas["Order-Input"]["properties"]["part"]["$ref"] == "#/components/schemas/Part-Input"
    assert schemas["Part-Input"]["additionalProperties"] is False
    assert schemas["Receipt"]["properties"]["order"]["$ref"] == "#/components/schemas/Order"
    assert "additionalProperties" not in json.dumps([schemas["Order"], schemas["Part"], schemas["Receipt"]])
    assert lenient_requests(schema) == set()
