"""Adds an example to every request body, answer and parameter of an OpenAPI document.

An example is composed from the schema: the example of a type (`Field(examples=…)`) or of a model
(`json_schema_extra`), else a default, the first value of an enumeration, or the smallest number. So an example never
disagrees with its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.http.problems import MEDIA_TYPE

_SCHEMAS = "#/components/schemas/"
_JSON = "application/json"

_PROBLEM = {
    "type": "urn:muster:problem:clock",
    "title": "Unauthorized",
    "status": 401,
    "code": "clock",
    "detail": "the request's time is 75 s behind the service's; at most 60 s are allowed",
    "hint": "set the machine's clock (chrony or systemd-timesyncd), and sign each request when it is sent",
    "retryable": False,
    "instance": "urn:muster:request:0f3c1a5e9b7d4c2f8a6e0d1b3c5f7a9e",
}


def add_examples(schema: dict[str, Any]) -> None:
    """Adds the examples to the document; keeps those that a route has declared."""
    schemas = schema["components"]["schemas"]
    for path in schema.get("paths", {}).values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter["required"]:
                    parameter.setdefault("example", _example(parameter["schema"], schemas, complete=False))
            _add(operation.get("requestBody", {}), schemas, complete=False)
            for response in operation["responses"].values():
                _add(response, schemas, complete=True)


def _add(body: Mapping[str, Any], schemas: Mapping[str, Any], *, complete: bool) -> None:
    for media_type, content in body.get("content", {}).items():
        if media_type == MEDIA_TYPE:
            content.setdefault("example", _PROBLEM)
        elif media_type == _JSON and "schema" in content:
            content.setdefault("example", _example(content["schema"], schemas, complete=complete))


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], *, complete: bool) -> Any:  # noqa: ANN401
    """Returns a value that the schema allows.

    Args:
        schema: Schema of the value.
        schemas: Schemas of the document by name.
        complete: Whether objects have all fields, as in answers, and not only the required ones.
    """
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].removeprefix(_SCHEMAS)], schemas, complete=complete)
    for name in ("examples", "enum"):
        if schema.get(name):
            return schema[name][0]
    for name in ("const", "default"):
        if schema.get(name) is not None:
            return schema[name]
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return _example(schema[name][0], schemas, complete=complete)
    found: Any
    match schema.get("type", "string"):
        case "object":
            found = _object(schema, schemas, complete=complete)
        case "array":
            found = [_example(schema["items"], schemas, complete=complete)]
        case kind:
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            found = {"integer": least, "number": least, "boolean": True, "null": None}.get(kind, "text")
    return found


def _object(schema: Mapping[str, Any], schemas: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    fields = schema.get("properties")
    if fields is None:
        name = _example(schema.get("propertyNames", {}), schemas, complete=complete)
        return {name: _example(schema.get("additionalProperties", {}), schemas, complete=complete)}
    names = fields if complete else schema.get("required", ())
    return {name: _example(fields[name], schemas, complete=complete) for name in names}
