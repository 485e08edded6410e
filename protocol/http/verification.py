"""Verifies signed requests, with the cheapest checks first.

The order of checks is: rate per IP (in the middleware, before routing), size, headers, clock, signature, audience, role
of the address, and finally rate per address and nonce in one Redis script.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from protocol.errors import Forbidden, InvalidInput, TooLarge, Unauthenticated, Unprocessable, plain_message
from protocol.http.openapi import SIGNATURE, secured
from protocol.http.replay_guard import CLOCK_WINDOW, ReplayGuard
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import (
    REQUEST_HEADERS,
    RequestStamp,
    check_request_line,
    check_signature,
    read_stamp,
    sign_response,
    unix_ms,
)
from protocol.runtime.clock import Clock

Model = TypeVar("Model", bound=BaseModel)

JSON = b"application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FastResponse:
    """Response of a fast route, to which the middleware adds its headers."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Header fields including Content-Length, with lower-case names as ASGI requires."""
    body: bytes


FastRoute = Callable[[Scope, Receive], Awaitable[FastResponse]]
"""Route under heavy load, which the middleware calls directly with the raw ASGI request.

At thousands of requests per second, the web framework's router, request and response objects cost more than all checks.
The middleware treats fast routes like others: limits, request id, protocol version, metrics, log and problem responses.
"""

Authorize = Callable[[Address, Request], Awaitable[None]]
"""Function that checks the role of a signer. It raises `Forbidden` if the role does not allow the request."""

FastHandler = Callable[["SignedRequest", str], Awaitable[bytes]]
"""Function that takes a verified request and its source IP, and returns the JSON body of the answer."""

SENT_METHOD = "muster.method"
"""Key in a request's ASGI scope of the method that the client has sent and signed, if a route of another one serves it.
"""

DEFAULT_BODY_LIMIT = 1024 * 1024
"""Default maximum size of a request body, in bytes."""

_STAMP_NAMES = {name.lower().encode("ascii"): name for name in REQUEST_HEADERS}
"""Canonical names of the signature headers, by their lower-case names in ASGI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """A request whose signature, audience and timestamp were verified."""

    address: Address
    audience: Address
    nonce: str
    timestamp_ms: int
    body: bytes
    target: str = ""
    """Path with query, as it was signed."""
    signature: bytes = b""

    def read(self, model: type[Model]) -> Model:
        """Parses the body as `model`.

        Raises:
            Unprocessable: The body is not valid JSON for `model`. The error names the fields but repeats no values.
        """
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise unprocessable(error) from None

    def answer(self, key: Key, content: BaseModel, *, status: int = 200) -> Response:
        """Returns a response to this request, signed with the service's key."""
        body = content.model_dump_json().encode()
        headers = sign_response(key, address=self.address, nonce=self.nonce, status=status, body=body)
        return Response(body, status, headers, media_type="application/json")

    def fast_answer(self, key: Key, body: bytes) -> FastResponse:
        """Returns a signed response with status 200 for a fast route; `body` is JSON."""
        proof = sign_response(key, address=self.address, nonce=self.nonce, status=200, body=body)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", JSON)]
        headers += [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in proof.items()]
        return FastResponse(status=200, headers=headers, body=body)


class RequestVerifier:
    """Verifies HTTP requests: returns a signed request, or raises the reason of the refusal.

    Args:
        audience: Address of the service. A function if there may be several addresses, as during a key rotation.
        admission: Replay guard, which checks rate per address and nonce.
        clock: Clock that timestamps of requests are compared with.
        body_limit: Maximum size of a body in bytes, unless the route sets another limit.
    """

    def __init__(
        self,
        *,
        audience: Address | Callable[[], Collection[Address]],
        admission: ReplayGuard,
        clock: Clock,
        body_limit: int = DEFAULT_BODY_LIMIT,
    ) -> None:
        self._audiences = audience if callable(audience) else lambda: (audience,)
        self.admission = admission
        self._clock = clock
        self._body_limit = body_limit

    async def authenticate(
        self, request: Request, *, authorize: Authorize | None = None, body_limit: int | None = None
    ) -> SignedRequest:
        """Makes all checks except the replay guard; `authorize` may do I/O.

        Use it only in routes whose own Redis script contains the replay guard (`protocol.http.replay_guard`). The
        request may be a replay until that script has run.

        Raises:
            Unauthenticated: The request is unsigned, stale, altered, or signed for another audience.
            InvalidInput: A header or the request line is not in canonical form.
            TooLarge: The body is larger than the limit.
            Forbidden: The address's role does not allow the request.
        """
        signed = await self.authenticate_raw(request.scope, request.receive, body_limit=body_limit)
        if authorize is not None:
            await authorize(signed.address, request)
        return signed

    async def authenticate_raw(self, scope: Scope, receive: Receive, *, body_limit: int | None = None) -> SignedRequest:
        """Makes all checks except authorisation and replay guard, for fast routes.

        It works on the raw ASGI request.

        Raises:
            Unauthenticated, InvalidInput, TooLarge: The same causes as for `authenticate`.
            ClientDisconnect: The client closed the connection before the end of the body.
        """
        limit = self._body_limit if body_limit is None else body_limit
        declared, headers = _stamp_headers(scope)
        check_declared_size(declared, limit)
        stamp = read_stamp(headers)
        check_clock(stamp, now=self._clock.now())
        method, target = scope.get(SENT_METHOD, scope["method"]), target_of(scope)
        check_request_line(method, target)
        body = await read_body(receive, limit)
        check_signature(stamp, method=method, target=target, body_sha256=hashlib.sha256(body).hexdigest())
        self._check_audience(stamp)
        return SignedRequest(
            address=stamp.address,
            audience=stamp.audience,
            nonce=stamp.nonce,
            timestamp_ms=stamp.timestamp_ms,
            body=body,
            target=target,
            signature=stamp.signature,
        )

    async def verify(
        self, request: Request, *, authorize: Authorize | None = None, body_limit: int | None = None
    ) -> SignedRequest:
        """Makes all checks, including the replay guard.

        Raises:
            Unauthenticated, InvalidInput, TooLarge, Forbidden: The same causes as for `authenticate`.
            Conflict: The nonce was used before.
            RateLimited: The address exceeds its rate.
            StoreUnavailable: Redis is down, so replays can't be detected.
        """
        signed = await self.authenticate(request, authorize=authorize, body_limit=body_limit)
        await self.admission.admit(signed.address, signed.nonce)
        return signed

    def fast_route(self, handler: FastHandler, *, key: Key, body_limit: int) -> FastRoute:
        """Returns a fast route that authenticates requests and signs the handler's answer.

        Args:
            handler: Handler whose own Redis script contains the replay guard; see `authenticate`.
            key: Key of the service, which signs answers.
            body_limit: Maximum size of a body, in bytes.
        """

        async def serve(scope: Scope, receive: Receive) -> FastResponse:
            signed = await self.authenticate_raw(scope, receive, body_limit=body_limit)
            return signed.fast_answer(key, await handler(signed, scope["muster.ip"]))

        return serve

    def _check_audience(self, stamp: RequestStamp) -> None:
        audiences = self._audiences()
        if stamp.audience not in audiences:
            raise Unauthenticated(
                f"the request was signed for {stamp.audience}, but the address of this service is "
                f"{', '.join(sorted(audiences))}",
                hint="check the service's URL, and its address on the ledger or in your settings",
                code="wrong-audience",
            )


def signed_request(
    *, authorize: Authorize | None = None, body_limit: int | None = None
) -> Callable[[Request], Awaitable[SignedRequest]]:
    """Returns a FastAPI dependency that yields the verified `SignedRequest`.

    It uses the application's verifier, `app.state.verifier`.

    The route parses the body with `signed.read(Model)`. It must not declare a body parameter, because FastAPI would
    read the body before any check.

    Args:
        authorize: Function that checks that the signer may make this request.
        body_limit: Maximum size of a body, in bytes.
    """

    async def dependency(request: Request) -> SignedRequest:
        return await verifier_of(request).verify(request, authorize=authorize, body_limit=body_limit)

    return secured(dependency, SIGNATURE)


def verifier_of(request: Request) -> RequestVerifier:
    """Returns the verifier of the application that serves this request."""
    verifier = request.app.state.verifier
    if not isinstance(verifier, RequestVerifier):
        raise TypeError("app.state.verifier must be a RequestVerifier")
    return verifier


def only(*addresses: Address) -> Authorize:
    """Returns a check that allows only these addresses."""

    async def authorize(address: Address, _request: Request) -> None:
        if address not in addresses:
            raise Forbidden(
                f"{address} may not make this request", hint="sign with the key that holds the required role"
            )

    return authorize


def check_clock(stamp: RequestStamp, *, now: datetime) -> None:
    """Checks that the request's timestamp is within `CLOCK_WINDOW` of `now`.

    Raises:
        Unauthenticated: The timestamp is too old, or too far in the future.
    """
    skew_ms = stamp.timestamp_ms - unix_ms(now)
    if abs(skew_ms) > CLOCK_WINDOW.total_seconds() * 1000:
        direction = "ahead of" if skew_ms > 0 else "behind"
        raise Unauthenticated(
            f"the request's time is {abs(skew_ms) / 1000:.0f} s {direction} the service's; "
            f"at most {CLOCK_WINDOW.total_seconds():.0f} s are allowed",
            hint="set the machine's clock (chrony or systemd-timesyncd), and sign each request when it is sent",
            code="clock",
        )


def check_declared_size(declared: str | None, limit: int) -> None:
    """Checks that `Content-Length` is missing or within the limit.

    Raises:
        TooLarge: The declared size is larger.
        InvalidInput: `Content-Length` is not a number.
    """
    if declared is None:
        return
    if not (declared.isascii() and declared.isdigit() and len(declared) <= 18):
        raise InvalidInput(
            "Content-Length is not a number",
            hint="send the size of the body in decimal digits",
            code="malformed-header",
        )
    if int(declared) > limit:
        raise too_large(limit)


async def read_body(receive: Receive, limit: int) -> bytes:
    """Reads the body; stops at the first piece beyond the limit.

    Raises:
        TooLarge: The body is larger than the limit.
        ClientDisconnect: The client closed the connection before the end of the body.
    """
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        pieces.append(piece)
        more = message.get("more_body", False)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def target_of(scope: Scope) -> str:
    """Returns path and query as on the request line.

    If the query is empty, there is no question mark.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")


def unprocessable(error: ValidationError) -> Unprocessable:
    """Converts a pydantic error to `Unprocessable`, with fields and messages but no values."""
    fields = {
        ".".join(str(part) for part in item["loc"]) or "body": plain_message(item["msg"])
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    }
    return Unprocessable(
        "; ".join(f"{name}: {what}" for name, what in list(fields.items())[:5])[:1000],
        fields=dict(list(fields.items())[:100]),
        hint="see the service's /docs for the form of this request",
    )


def _stamp_headers(scope: Scope) -> tuple[str | None, dict[str, str]]:
    """Returns the declared size and the five signature headers.

    All are found in one pass, for speed. Each signature header may occur only once. Otherwise a proxy and this service
    could each read a different one of two values.
    """
    declared: str | None = None
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = _STAMP_NAMES.get(raw)
        if name is not None:
            if name in found:
                raise InvalidInput(
                    f"{name} occurs more than once", hint="send each signature header once", code="malformed-header"
                )
            found[name] = value.decode("latin-1")
        elif raw == b"content-length" and declared is None:
            declared = value.decode("latin-1")
    return declared, found


def too_large(limit: int) -> TooLarge:
    """Returns the error for a body beyond its limit of `limit` bytes."""
    return TooLarge(f"the body is larger than {limit} bytes", hint="send less at a time")
