"""Routes of OpenAI clients."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from gateway.api.access import Client
from gateway.clients.requests import ClientRequest
from gateway.clients.tokens import TokenRow
from gateway.dependencies import Dependencies, dependencies_of
from protocol.http.openapi import json_body
from protocol.http.verification import check_declared_size, read_body
from protocol.openai.bodies import ChatBody, CompletionBody, GenerateBody
from protocol.wire.served import RequestKind

router = APIRouter(tags=["serving"])


@router.get("/v1/models")
async def list_models(request: Request, _client: Client) -> JSONResponse:
    """Return the served model with its version."""
    return JSONResponse({"object": "list", "data": [await _card(dependencies_of(request))]})


@router.get("/v1/models/{model:path}")
async def get_model(request: Request, _client: Client, model: str) -> JSONResponse:
    """Return the served model."""
    dependencies = dependencies_of(request)
    await dependencies.answers.requests.version_of(model)
    return JSONResponse(await _card(dependencies))


@router.post("/v1/completions", openapi_extra=json_body(CompletionBody))
async def create_completion(request: Request, client: Client) -> Response:
    """Complete texts or token ids."""
    return await _answer(request, client, RequestKind.COMPLETION)


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatBody))
async def create_chat_completion(request: Request, client: Client) -> Response:
    """Answer a chat."""
    return await _answer(request, client, RequestKind.CHAT)


@router.post("/inference/v1/generate", openapi_extra=json_body(GenerateBody))
async def generate_tokens(request: Request, client: Client) -> Response:
    """Continue token ids; the answer has token ids."""
    return await _answer(request, client, RequestKind.GENERATE)


async def _answer(request: Request, client: TokenRow, kind: RequestKind) -> Response:
    dependencies = dependencies_of(request)
    limit = dependencies.settings.body_bytes
    check_declared_size(request.headers.get("content-length"), limit)
    content = await read_body(request.receive, limit)
    answers = dependencies.answers

    async def start() -> ClientRequest:
        return await answers.requests.admit(client, kind, content)

    return await answers.respond(request.receive, start)


async def _card(dependencies: Dependencies) -> dict[str, Any]:
    version, served = await dependencies.answers.requests.served_version()
    name = dependencies.settings.model_name
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "muster",
        "root": name,
        "muster": {"version": served, "number": version},
    }
