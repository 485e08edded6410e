"""Finds errors in the OpenAPI schema of a service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

PREFIX = "#/components/schemas/"


def dangling_references(schema: dict[str, Any]) -> set[str]:
    """Returns the references to schemas that are not declared."""
    return {name for name in _references(schema) if name not in schema["components"]["schemas"]}


def lenient_requests(schema: dict[str, Any]) -> set[str]:
    """Returns the schemas of request bodies, nested ones included, that allow unknown fields."""
    schemas = schema["components"]["schemas"]
    bodies = [
        operation["requestBody"]
        for path in schema["paths"].values()
        for operation in path.values()
        if "requestBody" in operation
    ]
    return {
        name
        for name in reachable(bodies, schemas)
        if "properties" in schemas[name] and schemas[name].get("additionalProperties") is not False
    }


def reachable(parts: list[Any], schemas: dict[str, Any]) -> set[str]:
    """Returns the names of the schemas to which parts of the document refer, nested ones included."""
    found: set[str] = set()
    while new := set(_references([*parts, *(schemas[name] for name in found)])) - found:
        found |= new
    return found


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, str) and part.startswith(PREFIX):
        yield part.removeprefix(PREFIX)
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _references(each)
