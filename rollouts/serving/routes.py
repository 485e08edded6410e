"""Routes of the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, StrictStr

from protocol.http.openapi import json_body
from protocol.http.verification import read_body
from protocol.identifiers import WireDigest
from protocol.identity.scopes import Scope
from protocol.openai.bodies import Body, ChatBody, CompletionBody, GenerateBody, Sampling
from protocol.openai.connected import while_connected
from protocol.openai.errors import InvalidRequest, UnknownModel
from protocol.openai.replies import ReplyFormat
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import token_hex
from protocol.runtime.threads import run_in_thread
from rollouts.engines.interface import Completion
from rollouts.engines.request_encoding import encode, room, sample_requests
from rollouts.models.tokenizer import LONG_TEXT
from rollouts.serving.access import needs
from rollouts.serving.backend import Backend, Work
from rollouts.serving.event_stream import EventStream
from rollouts.serving.generation import Generation
from rollouts.serving.metrics import ServingMetrics
from rollouts.serving.replies import Reply, StreamedReply
from rollouts.serving.version import ServedVersion

_MANY_TOKENS = 1024
"""Number of tokens up to which an answer is written in the event loop's thread, in less than 10 ms."""

router = APIRouter()
client = Depends(needs(Scope.OPERATE))
admin = Depends(needs(Scope.ADMIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Objects that the routes share.

    Args:
        backend: The engine.
        name: Name of the model.
        started: Unix time of the start in seconds.
        clock: Clock of answers.
        metrics: Counters.
    """

    backend: Backend
    name: str
    started: int
    clock: Clock
    metrics: ServingMetrics

    def check_model(self, name: str | None) -> None:
        """Accepts the model's name and the version's digest.

        Raises:
            UnknownModel: The request names another model.
        """
        if name is not None and name not in (self.name, self.backend.version.digest):
            raise UnknownModel(f"the model {name[:100]!r} is not served here", hint=f"this service has {self.name}")


def service_of(request: Request) -> Service:
    """Returns the objects of the application that serves this request."""
    service: Service = request.app.state.service
    return service


class UpdateBody(Body):
    """Body of `POST /update_weights`."""

    weight_dir: Annotated[StrictStr, Field(min_length=1, max_length=4096)]
    """Absolute path of the version's folder on the service's machine."""
    version: WireDigest | None = None
    """Expected version digest; without it, any complete folder is accepted."""
    skip_prefix_cache_reset: bool | None = None
    """Accepted and ignored: weights never meet keys and values of other weights."""


@router.get("/v1/models", dependencies=[client], tags=["serving"])
async def list_models(request: Request) -> JSONResponse:
    """Return the served model, with its context length and version."""
    return JSONResponse({"object": "list", "data": [_card(service_of(request))]})


@router.get("/v1/models/{model:path}", dependencies=[client], tags=["serving"])
async def get_model(request: Request, model: str) -> JSONResponse:
    """Return the served model."""
    service = service_of(request)
    service.check_model(model)
    return JSONResponse(_card(service))


@router.post("/v1/completions", dependencies=[client], tags=["serving"], openapi_extra=json_body(CompletionBody))
async def create_completion(request: Request) -> Response:
    """Complete texts or token ids."""
    service = service_of(request)
    content = await read_body(request.receive, service.backend.limits.body_bytes)
    body = CompletionBody.parse(content)
    service.check_model(body.model)
    logprobs = body.wants_logprobs()
    plan = _Plan(
        body=body,
        count=body.choices,
        encode=partial(encode, body),
        inline=len(content) < LONG_TEXT,
        new_tokens=body.new_tokens,
        param="prompt",
    )
    return await _answer(request, plan, kind="cmpl", chat=False, logprobs=logprobs, usage=body.wants_usage())


@router.post("/v1/chat/completions", dependencies=[client], tags=["serving"], openapi_extra=json_body(ChatBody))
async def create_chat_completion(request: Request) -> Response:
    """Answer a chat."""
    service = service_of(request)
    content = await read_body(request.receive, service.backend.limits.body_bytes)
    body = ChatBody.parse(content)
    service.check_model(body.model)
    plan = _Plan(
        body=body,
        count=body.choices,
        encode=partial(encode, body),
        inline=len(content) < LONG_TEXT,
        new_tokens=body.new_tokens,
        param="messages",
    )
    return await _answer(
        request, plan, kind="chatcmpl", chat=True, logprobs=body.wants_logprobs(), usage=body.wants_usage()
    )


@router.post("/inference/v1/generate", dependencies=[client], tags=["serving"], openapi_extra=json_body(GenerateBody))
async def generate_tokens(request: Request) -> Response:
    """Continue token ids; the answer has token ids."""
    service = service_of(request)
    body = GenerateBody.parse(await read_body(request.receive, service.backend.limits.body_bytes))
    service.check_model(body.model)
    sampling = body.sampling_params
    plan = _Plan(
        body=sampling,
        count=body.choices,
        encode=partial(encode, body),
        inline=True,
        new_tokens=body.new_tokens,
        param="token_ids",
    )

    async def work() -> Response:
        generation, version = await _start(service, plan, streamed=False)
        with generation:
            completions = await generation.completions()
        service.metrics.count(completions)
        reply = _reply(service, generation, version, kind="gen", chat=False, logprobs=False)
        identifier = body.request_id or reply.form.identifier
        return await _written(
            completions, lambda: reply.generated(identifier, completions, logprobs=body.wants_logprobs())
        )

    return await while_connected(request.receive, work())


@router.post("/pause", dependencies=[admin], tags=["administration"])
async def pause(
    request: Request,
    mode: Annotated[Literal["wait", "keep", "abort"], Query()] = "wait",
    clear_cache: Annotated[bool, Query()] = True,  # noqa: ARG001 - accepted for vLLM's clients
) -> JSONResponse:
    """Let new requests wait, and return when no answer is in progress.

    `wait` and `keep` let the answers in progress end. `abort` stops them.
    """
    await service_of(request).backend.pause(abort=mode == "abort")
    return JSONResponse({"status": "paused"})


@router.post("/resume", dependencies=[admin], tags=["administration"])
async def resume(request: Request) -> JSONResponse:
    """Answer requests again."""
    service_of(request).backend.resume()
    return JSONResponse({"status": "resumed"})


@router.get("/is_paused", dependencies=[admin], tags=["administration"])
async def is_paused(request: Request) -> JSONResponse:
    """Return whether requests wait."""
    return JSONResponse({"is_paused": service_of(request).backend.paused})


@router.post("/update_weights", dependencies=[admin], tags=["administration"], openapi_extra=json_body(UpdateBody))
async def update_weights(request: Request) -> JSONResponse:
    """Serve another version.

    Answers in progress end with the former version; new requests wait for the new one. After an error the service goes
    on with the former version.
    """
    service = service_of(request)
    body = UpdateBody.parse(await read_body(request.receive, service.backend.limits.body_bytes))
    folder = Path(body.weight_dir)
    if not folder.is_absolute():
        raise InvalidRequest("weight_dir", f"{body.weight_dir[:200]} is not an absolute path")
    version = await service.backend.update(folder, digest=body.version)
    return JSONResponse({"status": "ok", "version": version.digest})


@router.get("/health", tags=["health"])
async def get_health(request: Request) -> JSONResponse:
    """Return 200 while the engine works."""
    await service_of(request).backend.check()
    return JSONResponse({"status": "ok"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A valid request whose prompts are not encoded yet.

    Args:
        body: The sampling options.
        count: Number of answers.
        encode: Returns the token ids of the prompts.
        inline: Whether encoding is fast enough for the event loop's thread, because the body has no long text.
        new_tokens: Maximum number of new tokens; None for all that fit.
        param: Name of the field with the prompts, for errors.
    """

    body: Sampling
    count: int
    encode: Callable[[ServedVersion], Sequence[Sequence[int]]]
    inline: bool
    new_tokens: int | None
    param: str


async def _answer(
    request: Request, plan: _Plan, *, kind: str, chat: bool, logprobs: bool, usage: bool | None
) -> Response:
    """Answers a request, streamed if `usage` is not None; `usage` says whether the stream ends with the usage."""
    service = service_of(request)

    async def work() -> Response:
        generation, version = await _start(service, plan, streamed=usage is not None)
        reply = _reply(service, generation, version, kind=kind, chat=chat, logprobs=logprobs)
        if usage is not None:
            return EventStream(generation, StreamedReply(reply, with_usage=usage, on_end=service.metrics.count))
        with generation:
            completions: list[Completion] = await generation.completions()
        service.metrics.count(completions)
        return await _written(completions, lambda: reply.whole(completions))

    return await while_connected(request.receive, work())


async def _written(completions: Sequence[Completion], write: Callable[[], bytes]) -> Response:
    """Returns the answer that a function writes; in a thread if it has so many tokens that streams would stall."""
    many = sum(len(one.tokens) for one in completions) > _MANY_TOKENS
    return Response(await run_in_thread(write) if many else write(), media_type="application/json")


async def _start(service: Service, plan: _Plan, *, streamed: bool) -> tuple[Generation, ServedVersion]:
    backend = service.backend
    if plan.count > backend.limits.choices:
        raise InvalidRequest(
            "n",
            f"the request asks for {plan.count} answers; the limit is {backend.limits.choices}",
            hint="ask for fewer",
        )
    seed = plan.body.seed_bytes()
    served: list[ServedVersion] = []

    async def make(version: ServedVersion) -> Work:
        plan.body.check_stop_tokens(version.model.end_tokens)
        prompts = plan.encode(version) if plan.inline else await run_in_thread(plan.encode, version)
        new_tokens = room(prompts, version) if plan.new_tokens is None else plan.new_tokens
        served[:] = [version]
        return Work(
            requests=sample_requests(
                prompts,
                each=plan.body.n or 1,
                seed=seed,
                version=version,
                new_tokens=new_tokens,
                param=plan.param,
            ),
            parameters=plan.body.parameters(new_tokens),
            streamed=streamed,
        )

    generation = await backend.generate(plan.count, make)
    return generation, served[0]


def _reply(
    service: Service, generation: Generation, version: ServedVersion, *, kind: str, chat: bool, logprobs: bool
) -> Reply:
    return Reply(
        form=ReplyFormat(
            identifier=f"{kind}-{token_hex(12)}",
            created=int(service.clock.now().timestamp()),
            model=service.name,
            chat=chat,
            logprobs=logprobs,
            fingerprint=f"{service.backend.arithmetic}@{version.digest[:18]}",
        ),
        version=version,
        arithmetic=service.backend.arithmetic,
        requests=generation.requests,
        parameters=generation.parameters,
        with_proofs=service.backend.with_proofs,
    )


def _card(service: Service) -> dict[str, Any]:
    version = service.backend.version
    return {
        "id": service.name,
        "object": "model",
        "created": service.started,
        "owned_by": "muster",
        "root": service.name,
        "max_model_len": version.model.context,
        "muster": {"version": version.digest, "arithmetic": str(service.backend.arithmetic)},
    }
