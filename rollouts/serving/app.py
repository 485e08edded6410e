"""Builds the OpenAI-compatible service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from protocol.http.serving.service import add_routes, create_service
from protocol.http.tokens import TokenBook
from protocol.openai.errors import openai_form
from protocol.runtime.clock import Clock, SystemClock
from protocol.versions import release
from rollouts.serving.backend import Backend
from rollouts.serving.metrics import ServingMetrics
from rollouts.serving.routes import Service, router

DESCRIPTION = """One model behind OpenAI's API. Every answer has the field `muster`, from which
`muster rollouts verify` checks with the model's folder that the named version drew it.

Errors have OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

Requests need a bearer token. Only an admin token may pause the service and update weights."""


def build_serving(backend: Backend, *, name: str, tokens: TokenBook, clock: Clock | None = None) -> FastAPI:
    """Returns the application, whose lifespan loads the version and closes the engine.

    Args:
        backend: The engine and its version.
        name: Name of the model.
        tokens: Accepted tokens.
        clock: The system's clock by default.
    """
    clock = SystemClock() if clock is None else clock

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with backend:
            yield

    app = create_service(
        "serve",
        version=release(),
        description=DESCRIPTION,
        lifespan=lifespan,
        checks={"engine": backend.check},
        clock=clock,
        body_limit=backend.limits.body_bytes,
        connections=backend.limits.connections,
        tags=({"name": "serving"}, {"name": "administration"}),
        form=openai_form,
    )
    app.state.tokens = tokens
    app.state.service = Service(
        backend=backend,
        name=name,
        started=int(clock.now().timestamp()),
        clock=clock,
        metrics=ServingMetrics(backend, app.state.registry),
    )
    add_routes(app, router)
    return app
