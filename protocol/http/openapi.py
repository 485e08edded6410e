"""Completes the OpenAPI schema of a service: request bodies that routes parse themselves, and problem answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from protocol.http.problems import MEDIA_TYPE, Problem

_SCHEMAS = "#/components/schemas/"


class BodyDeclaration(dict[str, Any]):
    """OpenAPI declaration of a request body, with the body's model.

    FastAPI can't infer it, because the route parses the body itself after it has checked access.
    """

    def __init__(self, model: type[BaseModel], *, required: bool) -> None:
        schema = {"$ref": _SCHEMAS + model.__name__}
        super().__init__(requestBody={"required": required, "content": {"application/json": {"schema": schema}}})
        self.model = model


def json_body(model: type[BaseModel], *, required: bool = True) -> BodyDeclaration:
    """Returns the declaration of a route's body, for its argument `openapi_extra`.

    `create_service` adds the model to the schemas of the service.
    """
    return BodyDeclaration(model, required=required)


def complete_openapi(app: FastAPI) -> None:
    """Adds to the application's schema the bodies from `json_body`, and the problem that every error response is.

    Without the latter, OpenAPI would show FastAPI's own error format.
    """
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            _declare_bodies(schema, _body_models(app))
            _declare_problems(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the schema


def _body_models(app: FastAPI) -> list[type[BaseModel]]:
    declared = [route.openapi_extra for route in app.routes if isinstance(route, APIRoute)]
    return list(dict.fromkeys(each.model for each in declared if isinstance(each, BodyDeclaration)))


def _declare_bodies(schema: dict[str, Any], models: Iterable[type[BaseModel]]) -> None:
    """Adds the schemas of request bodies.

    A request must not have unknown fields, but an answer may. A model of both therefore has two schemas; that of
    requests is named `Model-Input`, as FastAPI does.
    """
    _, written = models_json_schema([(model, "validation") for model in models], ref_template=_SCHEMAS + "{model}")
    bodies: dict[str, Any] = written.get("$defs", {})
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    names: dict[str, str] = {}
    while different := [
        name
        for name in bodies.keys() & schemas.keys() - names.keys()
        if bodies[name] != schemas[name] or not names.keys().isdisjoint(_references(bodies[name]))
    ]:
        names |= {name: f"{name}-Input" for name in different}
    for name, body in bodies.items():
        schemas[names.get(name, name)] = _renamed(body, names)
    for operation in _operations(schema):
        if "requestBody" in operation:
            operation["requestBody"] = _renamed(operation["requestBody"], names)


def _declare_problems(schema: dict[str, Any]) -> None:
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["Problem"] = Problem.model_json_schema()
    answer = {
        "description": "A problem (RFC 9457)",
        "content": {MEDIA_TYPE: {"schema": {"$ref": _SCHEMAS + "Problem"}}},
    }
    for operation in _operations(schema):
        operation["responses"].pop("422", None)
        operation["responses"]["default"] = answer


def _operations(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path in schema.get("paths", {}).values():
        yield from path.values()


def _references(part: Any) -> Iterator[str]:  # noqa: ANN401 - any part of a JSON document
    """Yields the names of the schemas to which a part of the document refers."""
    match part:
        case dict():
            for each in part.values():
                yield from _references(each)
        case list():
            for each in part:
                yield from _references(each)
        case str() if part.startswith(_SCHEMAS):
            yield part.removeprefix(_SCHEMAS)


def _renamed(part: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401 - any part of a JSON document
    """Returns a copy of a part of the document that refers to schemas by their new names."""
    match part:
        case dict():
            return {key: _renamed(each, names) for key, each in part.items()}
        case list():
            return [_renamed(each, names) for each in part]
        case str() if part.startswith(_SCHEMAS):
            name = part.removeprefix(_SCHEMAS)
            return _SCHEMAS + names.get(name, name)
    return part
