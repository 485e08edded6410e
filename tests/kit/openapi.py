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
    found: set[str] = set()
    while new := set(_references([*bodies, *(schemas[name] for name in found)])) - found:
        found |= new
    return {
        name
        for name in found
        if "properties" in schemas[name] and schemas[name].get("additionalProperties") is not False
    }


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, str) and part.startswith(PREFIX):
        yield part.removeprefix(PREFIX)
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _references(each)
