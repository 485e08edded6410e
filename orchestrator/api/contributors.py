"""Routes of the contributors' page: login by a signed request, sessions, and what a provider may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from orchestrator.api.access import Node
from orchestrator.api.runs import KeyPath
from orchestrator.dependencies import dependencies_of
from orchestrator.store.sessions import Session
from protocol.http.openapi import SESSION, json_body, secured
from protocol.http.tokens import bearer
from protocol.http.verification import check_declared_size, read_body, unprocessable
from protocol.wire.me import (
    MOST_WORKS,
    Contributor,
    CreatedSession,
    EndedSessions,
    LoginLink,
    NewSession,
    OwnWorkPage,
    WorkEvidence,
)

router = APIRouter(prefix="/v1/me", tags=["contributors"])

CODE_BODY = 1024
"""Maximum bytes of a body with a one-time code."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """The session of a request, and its token."""

    token: str
    session: Session


async def _open_session(request: Request) -> OpenSession:
    token = bearer(request)
    return OpenSession(token, await dependencies_of(request).contributors.session(token))


InSession = Annotated[OpenSession, Depends(secured(_open_session, SESSION))]
"""A contributor with the token of a session, which can only read."""


@router.post("/logins", response_model=LoginLink)
async def create_login(signed: Node, request: Request) -> Response:
    """Create a one-time link to the contributor's page, for the signing node's provider or the signing provider.

    The link is valid for five minutes. A further one replaces an unused one.
    """
    dependencies = dependencies_of(request)
    return signed.answer(dependencies.key, await dependencies.contributors.login(signed.address))


@router.post("/logins/revoke", response_model=EndedSessions)
async def revoke_sessions(signed: Node, request: Request) -> Response:
    """End all sessions of the signing node's provider, or of the signing provider."""
    dependencies = dependencies_of(request)
    ended = await dependencies.contributors.revoke(signed.address)
    return signed.answer(dependencies.key, EndedSessions(ended=ended))


@router.post("/sessions", status_code=201, openapi_extra=json_body(NewSession))
async def begin_session(request: Request) -> CreatedSession:
    """Exchange a one-time code for a session of twelve hours. Only this response shows the session's token."""
    check_declared_size(request.headers.get("content-length"), CODE_BODY)
    content = await read_body(request.receive, CODE_BODY)
    try:
        body = NewSession.model_validate_json(content)
    except ValidationError as error:
        raise unprocessable(error) from None
    return await dependencies_of(request).contributors.begin(body.code)


@router.delete("/session", status_code=204)
async def end_session(caller: InSession, request: Request) -> Response:
    """End the session."""
    await dependencies_of(request).contributors.sessions.end(caller.token, caller.session.provider)
    return Response(status_code=204)


@router.get("")
async def get_contributor(caller: InSession, request: Request) -> Contributor:
    """Return the provider's nodes, earnings by day, open work, and stake."""
    return await dependencies_of(request).contributors.view(caller.session)


@router.get("/works")
async def list_own_works(
    caller: InSession,
    request: Request,
    *,
    skip: Annotated[int, Query(ge=0, le=1000, description="`next_cursor` of the last page")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_WORKS)] = 50,
) -> OwnWorkPage:
    """List submitted files of the provider's nodes with their verdicts, newest first.

    Only the newest 500 leases are kept for a provider; the ledger has all.
    """
    return await dependencies_of(request).contributors.works(caller.session, skip=skip, limit=limit)


@router.get("/works/{key}/evidence")
async def get_own_evidence(caller: InSession, request: Request, key: KeyPath) -> WorkEvidence:
    """Return what the validator found in a file of the provider's nodes: checks, findings with row and token, rows."""
    return await dependencies_of(request).contributors.evidence(caller.session, key)
