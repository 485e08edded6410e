"""Routes of verifiers: processes of the pool's owner that check answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from gateway.api.access import Verifier
from gateway.api.sessions import read_model
from gateway.dependencies import dependencies_of
from protocol.http.openapi import json_body
from protocol.openai.connected import while_connected
from protocol.wire.base import EXAMPLE_IDENTIFIER
from protocol.wire.serving import (
    TakenVerification,
    TakeVerification,
    VerificationResult,
    VerificationTaken,
)

BODY_BYTES = 128 * 1024
"""Maximum size of a verifier's request."""

router = APIRouter(prefix="/v1/verifications", tags=["verifications"])


@router.post("/take", openapi_extra=json_body(TakeVerification))
async def take_verification(request: Request, _verifier: Verifier) -> TakenVerification:
    """Take the answer that waits longest for a verifier; waits for one."""
    body = await read_model(request, TakeVerification, BODY_BYTES)
    stopping = request.app.state.stopping
    return await while_connected(request.receive, dependencies_of(request).verifications.take(body, stopping=stopping))


@router.post("/{identifier}", openapi_extra=json_body(VerificationResult))
async def judge_answer(
    request: Request,
    _verifier: Verifier,
    identifier: Annotated[
        str, Path(description="32 hex digits", pattern="^[0-9a-f]{32}$", examples=[EXAMPLE_IDENTIFIER])
    ],
) -> VerificationTaken:
    """Say whether an answer is valid."""
    body = await read_model(request, VerificationResult, BODY_BYTES)
    return await dependencies_of(request).verifications.judge(identifier, body)
