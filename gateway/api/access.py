"""Access control of the API: who may call a route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request

from gateway.clients.tokens import GatewayRole, TokenRow, invalid_token
from gateway.dependencies import dependencies_of
from gateway.sessions.opening import hash_session_token, wrong_session
from protocol.errors import Forbidden, Unauthenticated
from protocol.http.openapi import secured, token_with
from protocol.http.tokens import bearer
from protocol.http.verification import SignedRequest, signed_request
from protocol.identity.scopes import Scope
from protocol.wire.base import EXAMPLE_IDENTIFIER

NODE_BODY = 16 * 1024
"""Maximum bytes of a node's request to open a session."""


def needs(role: GatewayRole) -> Callable[[Request], Awaitable[TokenRow]]:
    """Returns a FastAPI dependency that requires a token with a role."""

    async def dependency(request: Request) -> TokenRow:
        token = await dependencies_of(request).tokens.check(_bearer(request))
        if token.role is not role:
            raise Forbidden(
                f"the token {token.name} has the role {token.role}; this request needs {role}",
                hint=f"create a token with `muster gateway token create --role {role}`",
                code="role",
            )
        return token

    return secured(dependency, token_with(Scope.OPERATE))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCaller:
    """A task with a session's token, which the session's script checks."""

    session: str
    token_hash: str


async def _session_caller(
    request: Request,
    session: Annotated[str, Path(description="32 hex digits", pattern="^[0-9a-f]{32}$", examples=[EXAMPLE_IDENTIFIER])],
) -> SessionCaller:
    caller = SessionCaller(session=session, token_hash=hash_session_token(_bearer(request)))
    if not await dependencies_of(request).database.has_session(session, caller.token_hash):
        raise wrong_session()  # before the body is read, which may have megabytes
    return caller


def _bearer(request: Request) -> str:
    try:
        return bearer(request)
    except Unauthenticated:
        error = invalid_token()
        raise Unauthenticated("this request needs a bearer token", hint=error.hint, code="invalid-api-key") from None


Client = Annotated[TokenRow, Depends(needs(GatewayRole.CLIENT))]
"""The holder of a client's token."""
Verifier = Annotated[TokenRow, Depends(needs(GatewayRole.VERIFIER))]
"""The holder of a verifier's token."""
Session = Annotated[SessionCaller, Depends(secured(_session_caller, token_with(Scope.OPERATE)))]
"""A task that answers requests."""
Node = Annotated[SignedRequest, Depends(signed_request(body_limit=NODE_BODY))]
"""Any signer. The route checks that the signer is a node of the pool with a lease."""
