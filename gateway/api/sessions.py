"""Routes of workers: a node opens a session, and its task answers requests."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from gateway.api.access import Node, Session
from gateway.dependencies import dependencies_of
from protocol.http.openapi import json_body
from protocol.http.verification import check_declared_size, read_body, unprocessable
from protocol.openai.connected import while_connected
from protocol.wire.served import SignedServedList
from protocol.wire.serving import (
    AnswerParts,
    OpenSession,
    PartsTaken,
    ServingSession,
    TakenRequests,
    TakeRequests,
)

PARTS_BYTES = 6 << 20
"""Maximum size of a task's request with parts."""
POLL_BYTES = 1024
"""Maximum size of a task's request for work."""

Model = TypeVar("Model", bound=BaseModel)

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.post("", openapi_extra=json_body(OpenSession), response_model=ServingSession)
async def open_session(request: Request, node: Node) -> Response:
    """Open a session for a leased slot.

    A repeated request for the lease returns a new token; the former one ends.
    """
    dependencies = dependencies_of(request)
    session = await dependencies.opening.open(node.address, node.read(OpenSession))
    return node.answer(dependencies.key, session)


@router.post("/{session}/requests", openapi_extra=json_body(TakeRequests))
async def take_requests(request: Request, caller: Session) -> TakenRequests:
    """Take clients' requests; waits for the first one, for a cancellation, or for the session's end."""
    dependencies = dependencies_of(request)
    body = await read_model(request, TakeRequests, POLL_BYTES)
    stopping = request.app.state.stopping
    work = dependencies.answering.take(caller.session, caller.token_hash, body, stopping=stopping)
    return await while_connected(request.receive, work)


@router.post("/{session}/answers", openapi_extra=json_body(AnswerParts))
async def send_answers(request: Request, caller: Session) -> PartsTaken:
    """Send parts of answers."""
    body = await read_model(request, AnswerParts, PARTS_BYTES)
    return await dependencies_of(request).answering.take_parts(caller.session, caller.token_hash, body)


@router.post("/{session}/close")
async def close_session(request: Request, caller: Session) -> SignedServedList:
    """Close the session, and return the signed list of the requests that it answered; may be repeated."""
    return await dependencies_of(request).opening.close(caller.session, caller.token_hash)


async def read_model(request: Request, model: type[Model], limit: int) -> Model:
    """Reads a request's body.

    Raises:
        TooLarge: The body has more than `limit` bytes.
        Unprocessable: The body is not JSON of the model.
    """
    check_declared_size(request.headers.get("content-length"), limit)
    content: Any = await read_body(request.receive, limit)
    try:
        return model.model_validate_json(
            content, extra="forbid"
        )  # also in records, where readers of answers allow more
    except ValidationError as error:
        raise unprocessable(error) from None
