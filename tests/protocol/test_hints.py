"""Every problem that a service answers says what to do: each error has a hint of its own, and statuses have one too."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, HTTPException

from protocol.errors import MusterError, RateLimited, Unprocessable
from protocol.http.problems import Problem, hint_of, problem_of
from protocol.http.serving.service import create_service

ROOT = Path(__file__).parents[2]
SERVED = ("orchestrator", "discovery", "protocol.http", "protocol.identity.signing", "protocol.identity.secp256k1")
"""Packages whose errors services answer."""
OF_CLIENTS = {"protocol.http.client", "protocol.http.object_transfer", "protocol.http.object_store_errors"}


def modules() -> Iterator[str]:
    for name in SERVED:
        package = importlib.import_module(name)
        yield name
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            if module.name not in OF_CLIENTS and not module.name.endswith("__main__"):
                yield module.name


def classes(base: type[MusterError] = MusterError) -> Iterator[type[MusterError]]:
    yield base
    for each in base.__subclasses__():
        yield from classes(each)


def has_hint(call: ast.Call, kind: type[MusterError]) -> bool:
    given = [word for word in call.keywords if word.arg in {"hint", None}]
    if given:
        return not (isinstance(given[0].value, ast.Constant) and not given[0].value.value)
    return bool(kind.default_hint) or "hint" not in inspect.signature(kind).parameters or issubclass(kind, RateLimited)


def test_every_error_of_a_service_is_raised_with_a_hint() -> None:
    trees = {}
    for name in modules():
        file = importlib.import_module(name).__file__
        assert file is not None
        trees[Path(file).relative_to(ROOT)] = ast.parse(Path(file).read_text())
    kinds = {kind.__name__: kind for kind in classes()}
    raised, without = 0, []
    for path, tree in trees.items():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds:
                raised += 1
                if not has_hint(call, kinds[call.func.id]):
                    without.append(f"{path}:{call.lineno}")
    assert raised > 150
    assert without == []


def test_every_code_and_status_has_a_hint() -> None:
    list(modules())
    for kind in {
        kind for kind in classes() if kind.__module__.partition(".")[0] in {"protocol", "orchestrator", "discovery"}
    }:
        bare = kind.__new__(kind)
        MusterError.__init__(bare, "what happened", hint="")
        if isinstance(bare, RateLimited | Unprocessable):
            continue  # their constructors need more; their statuses are below
        assert problem_of(bare).hint, bare.code
    assert all(hint_of(status) for status in HTTPStatus if status >= 400)
    assert hint_of(499) == hint_of(400)
    assert hint_of(599) == hint_of(500)


@pytest.mark.parametrize("status", [400, 404, 405, 415, 418, 500, 502])
async def test_an_error_of_the_web_framework_has_a_hint(status: int) -> None:
    app: FastAPI = create_service("test", version="1")

    @app.get("/fails")
    async def fails() -> None:
        raise HTTPException(status, "no")

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        answers = [await http.get("/fails"), await http.post("/fails"), await http.get("/nothing")]
    assert [answer.status_code for answer in answers] == [status, 405, 404]
    for answer in answers:
        assert Problem.model_validate_json(answer.content).hint == hint_of(answer.status_code)
