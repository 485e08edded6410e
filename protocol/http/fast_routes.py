"""The short way for a route that is nearly all of a service's load: from the front door to its handler, and back.

A framework's middleware, router, request and response objects cost more than the checks that they carry, at thousands
of requests a second. An express route is called by the front door itself, after rate, version and size; it reads the
raw ASGI request and returns a plain answer. Everything that the door does for other routes it does for these too:
limits, request id, version, metrics, log, problem answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope

from protocol.http.verification import SignedRequest
from protocol.identity.keys import Key
from protocol.identity.signing import sign_response

JSON = b"application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FastResponse:
    """Response of a fast route, before the middleware adds its headers."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, as ASGI wants them; the length is among them."""
    body: bytes


Express = Callable[[Scope, Receive], Awaitable[FastResponse]]
"""Serves one request. Errors of ours become problem answers, as in any route."""


def signed_answer(key: Key, request: SignedRequest, body: bytes) -> FastResponse:
    """A 200 in JSON, signed by the service for this request only."""
    proof = sign_response(key, address=request.address, nonce=request.nonce, status=200, body=body)
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", JSON)]
    headers += [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in proof.items()]
    return FastResponse(status=200, headers=headers, body=body)
