"""The OpenAPI schemas of all services are complete, and their requests have no unknown fields."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI

from protocol.http.serving.service import create_service
from tests.fuzz import test_discovery, test_orchestrator
from tests.kit.openapi import dangling_references, lenient_requests
from validator.api.routes import router


def validator(_home: Path) -> FastAPI:
    app = create_service("validator", version="1")
    app.include_router(router)
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
