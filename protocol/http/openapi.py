"""Completes the OpenAPI schema of a service.

It adds what FastAPI can't infer: request bodies that routes parse themselves, problem answers, required signatures and
tokens, formats of integers, and examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from protocol.http.openapi_examples import add_examples
from protocol.http.problems import MEDIA_TYPE, Problem

F = TypeVar("F", bound=Callable[..., object])
Requirement = Mapping[str, list[str]]
"""A security scheme by name, with the scope that it needs."""

SIGNATURE: Requirement = {"signature": []}
"""A signed request."""
SESSION: Requirement = {"session": []}
"""The token of a contributor's session."""
PRESIGNED: Requirement = {"presignedUrl": []}
"""A URL that the service has signed."""

_SCHEMAS = "#/components/schemas/"
_SECURITY = "__openapi_security__"
_MOST_INT32 = (1 << 31) - 1
_MOST_INT64 = (1 << 63) - 1

_SCHEMES: dict[str, dict[str, Any]] = {
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Muster-Signature",
        "description": "Signature of the request by a node, validator, publisher or manager. It needs the headers "
        "X-Muster-Address, X-Muster-Audience, X-Muster-Timestamp and X-Muster-Nonce, too: see docs/protocol.md.",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "mst_<id>_<secret>",
        "description": "Token of the pool's owner. Scopes: `read` reads, `operate` also changes tasks, nodes and the "
        "run, `admin` also bans nodes and manages webhooks. Each scope includes those before it.",
    },
    "session": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "mse_<secret>",
        "description": "Token of a contributor's session, from `POST /v1/me/sessions`. It can only read.",
    },
    "presignedUrl": {
        "type": "apiKey",
        "in": "query",
        "name": "signature",
        "description": "URL from `POST /v1/uploads` or `GET /v1/objects`; use it unchanged.",
    },
}


def token_with(scope: str) -> Requirement:
    """Returns the requirement of a token with a scope."""
    return {"token": [str(scope)]}


def secured(dependency: F, *requirements: Requirement) -> F:
    """Declares the security requirements of the routes that use a dependency; each one is sufficient."""
    dependency.__dict__[_SECURITY] = requirements
    return dependency


def operation_id(route: APIRoute) -> str:
    """Returns the operation id of a route: the name of its function in camel case."""
    first, *others = route.name.split("_")
    return first + "".join(word.capitalize() for word in others)


def event_stream(description: str, example: str) -> dict[int | str, dict[str, Any]]:
    """Returns the declaration of an answer that may be a stream of server-sent events, for the argument `responses`."""
    content = {"schema": {"type": "string", "description": description}, "example": example}
    return {200: {"content": {"text/event-stream": content}}}


class BodyDeclaration(dict[str, Any]):
    """OpenAPI declaration of a request body, with the body's model.

    FastAPI can't infer it, because the route parses the body itself after it has checked access.
    """

    def __init__(self, model: type[BaseModel], *, required: bool, security: tuple[Requirement, ...]) -> None:
        schema = {"$ref": _SCHEMAS + model.__name__}
        super().__init__(requestBody={"required": required, "content": {"application/json": {"schema": schema}}})
        if security:
            self["security"] = [dict(each) for each in security]
        self.model = model


def json_body(
    model: type[BaseModel], *, required: bool = True, security: tuple[Requirement, ...] = ()
) -> BodyDeclaration:
    """Returns the declaration of a route's body, for its argument `openapi_extra`.

    `create_service` adds the model to the schemas of the service.

    Args:
        model: Model of the body.
        required: Whether a request must have a body.
        security: Security requirements of a route without a `secured` dependency.
    """
    return BodyDeclaration(model, required=required, security=security)


def complete_openapi(app: FastAPI, *, with_problems: bool = True) -> None:
    """Makes the application's schema complete; see the module's docstring.

    Without the declaration of problems, OpenAPI would show FastAPI's own error format.

    Args:
        app: The application.
        with_problems: Whether errors are problems (RFC 9457); otherwise the application describes its errors itself.
    """
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            _declare_bodies(schema, _body_models(app))
            if with_problems:
                _declare_problems(schema)
            _declare_security(schema, app)
            _declare_integers(schema)
            add_examples(schema)
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


def _declare_security(schema: dict[str, Any], app: FastAPI) -> None:
    """Adds the security requirements of each operation; a public operation has an empty list."""
    used: set[str] = set()
    for route in app.routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        found = [requirement for call in _calls(route.dependant) for requirement in getattr(call, _SECURITY, ())]
        for method in route.methods:
            operation = schema["paths"][route.path_format][method.lower()]
            operation.setdefault("security", [dict(each) for each in found])
            used |= {name for each in operation["security"] for name in each}
    if used:
        schema["components"]["securitySchemes"] = {name: _SCHEMES[name] for name in sorted(used)}


def _calls(dependant: Dependant) -> Iterator[object]:
    """Yields the functions of all dependencies."""
    for each in dependant.dependencies:
        yield each.call
        yield from _calls(each)


def _declare_integers(part: Any) -> None:  # noqa: ANN401 - any part of a JSON document
    """Adds `format: int64` to integers that may need more than 32 bits, and writes bounds as integers.

    FastAPI writes bounds of models as floating-point numbers: 2^63 - 1 would become 2^63.
    """
    match part:
        case {"type": "integer"}:
            for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
                if name in part:
                    part[name] = min(int(part[name]), _MOST_INT64)
            if part.get("maximum", part.get("exclusiveMaximum", _MOST_INT64)) > _MOST_INT32:
                part["format"] = "int64"
        case dict():
            for each in part.values():
                _declare_integers(each)
        case list():
            for each in part:
                _declare_integers(each)


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
