"""Checking signed requests, cheapest check first. The subject of a request is its signer: no body can name another.

The order: rate per IP (the service's front door does it, before it routes), size, headers, clock, signature, audience,
that the address may do this, then rate per address and nonce in one Redis script.
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

Authorize = Callable[[Address, Request], Awaitable[None]]
"""Returns if the address may do this; raises `Forbidden` if not."""

DEFAULT_BODY_LIMIT = 1024 * 1024

_STAMP_NAMES = {name.lower().encode("ascii"): name for name in REQUEST_HEADERS}
"""Header names as ASGI spells them, and in canonical form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """A request that was really sent by `address`, to us, just now."""

    address: Address
    audience: Address
    nonce: str
    timestamp_ms: int
    body: bytes

    def read(self, model: type[Model]) -> Model:
        """Parses the body.

        Raises:
            Unprocessable: It is not JSON of this form; fields are named, values are not repeated.
        """
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise unprocessable(error) from None

    def answer(self, key: Key, content: BaseModel, *, status: int = 200) -> Response:
        """A response signed by the service's key for this request only, so that no party on the path can forge it."""
        body = content.model_dump_json().encode()
        headers = sign_response(key, address=self.address, nonce=self.nonce, status=status, body=body)
        return Response(body, status, headers, media_type="application/json")


class RequestVerifier:
    """Verifies signatures of HTTP requests; raises an error for requests that fail a check.

    Args:
        audience: The address this service goes by; a function, where key rotation makes it several for a while.
        admission: Rate per address and nonces.
        clock: Whose time counts.
        body_limit: Bytes of the largest body, where the route says nothing else.
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
        """Makes all checks except the replay guard, without I/O.

        Only for hot paths whose own Redis script includes the replay guard (`protocol.http.replay_guard`): until that
        script has run, the request may be a replay.

        Raises:
            Unauthenticated: Unsigned, stale, altered, or signed for another audience.
            InvalidInput: Headers or request line are not in canonical form.
            TooLarge: The body is.
            Forbidden: `authorize` said no.
        """
        signed = await self.authenticate_raw(request.scope, request.receive, body_limit=body_limit)
        if authorize is not None:
            await authorize(signed.address, request)
        return signed

    async def authenticate_raw(self, scope: Scope, receive: Receive, *, body_limit: int | None = None) -> SignedRequest:
        """Makes all checks but authorisation and replay guard on the raw ASGI request, for fast routes.

        Raises:
            Unauthenticated, InvalidInput, TooLarge: As `authenticate` does.
            ClientDisconnect: The caller hung up before the end of the body.
        """
        limit = self._body_limit if body_limit is None else body_limit
        declared, headers = _stamp_headers(scope)
        check_declared_size(declared, limit)
        stamp = read_stamp(headers)
        check_clock(stamp, now=self._clock.now())
        method, target = scope["method"], target_of(scope)
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
        )

    async def verify(
        self, request: Request, *, authorize: Authorize | None = None, body_limit: int | None = None
    ) -> SignedRequest:
        """Makes all checks.

        Raises:
            Unauthenticated, InvalidInput, TooLarge, Forbidden: As `authenticate` does.
            Conflict: The request was made before.
            RateLimited: The address calls too often.
            StoreUnavailable: Redis can't say whether it was made before.
        """
        signed = await self.authenticate(request, authorize=authorize, body_limit=body_limit)
        await self.admission.admit(signed.address, signed.nonce)
        return signed

    def _check_audience(self, stamp: RequestStamp) -> None:
        audiences = self._audiences()
        if stamp.audience not in audiences:
            raise Unauthenticated(
                f"the request was signed for {stamp.audience}, and this is {', '.join(sorted(audiences))}",
                hint="check the service's URL, and its address on the ledger or in your settings",
                code="wrong-audience",
            )


def signed_request(
    *, authorize: Authorize | None = None, body_limit: int | None = None
) -> Callable[[Request], Awaitable[SignedRequest]]:
    """Returns a FastAPI dependency that yields the `SignedRequest`; the app keeps its verifier in `app.state.verifier`.

    The route reads its body with `signed.read(Model)` and declares none, because FastAPI would parse a declared body
    before any check.

    Args:
        authorize: Raises an error if the signer may not do this.
        body_limit: Bytes of the largest body.
    """

    async def dependency(request: Request) -> SignedRequest:
        return await verifier_of(request).verify(request, authorize=authorize, body_limit=body_limit)

    return dependency


def verifier_of(request: Request) -> RequestVerifier:
    """The verifier of the app that serves this request."""
    verifier = request.app.state.verifier
    if not isinstance(verifier, RequestVerifier):
        raise TypeError("app.state.verifier must be a RequestVerifier")
    return verifier


def only(*addresses: Address) -> Authorize:
    """Allows these addresses."""

    async def authorize(address: Address, _request: Request) -> None:
        if address not in addresses:
            raise Forbidden(f"{address} may not do this", hint="sign with the key that holds the role")

    return authorize


def check_clock(stamp: RequestStamp, *, now: datetime) -> None:
    """Returns if the stamp's time is within the window around `now`.

    Raises:
        Unauthenticated: It is stale, or from the future.
    """
    skew_ms = stamp.timestamp_ms - unix_ms(now)
    if abs(skew_ms) > CLOCK_WINDOW.total_seconds() * 1000:
        direction = "ahead of" if skew_ms > 0 else "behind"
        raise Unauthenticated(
            f"the request's time is {abs(skew_ms) / 1000:.0f} s {direction} ours; "
            f"at most {CLOCK_WINDOW.total_seconds():.0f} s are allowed",
            hint="set the machine's clock (chrony or systemd-timesyncd), and sign each request when it is sent",
            code="clock",
        )


def check_declared_size(declared: str | None, limit: int) -> None:
    """Returns if the size of a body that `Content-Length` declares is within the limit, or if none is declared.

    Raises:
        TooLarge: It is not.
        InvalidInput: It is no number.
    """
    if declared is None:
        return
    if not (declared.isascii() and declared.isdigit() and len(declared) <= 18):
        raise InvalidInput("Content-Length is not a number", code="malformed-header")
    if int(declared) > limit:
        raise too_large(limit)


async def read_body(receive: Receive, limit: int) -> bytes:
    """Reads the body, and stops at the first piece that goes beyond the limit.

    Raises:
        TooLarge: There is more.
        ClientDisconnect: The caller hung up before its end.
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
    """Path and query as they stand on the request's first line; an empty query has no question mark."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")


def unprocessable(error: ValidationError) -> Unprocessable:
    """Converts pydantic's error into ours: field and fault, never the value."""
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
    """Returns the declared size and the five headers, read in one pass.

    Each of the five may occur once, so that a proxy and this service can't read different values.
    """
    declared: str | None = None
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = _STAMP_NAMES.get(raw)
        if name is not None:
            if name in found:
                raise InvalidInput(f"{name} is there more than once", code="malformed-header")
            found[name] = value.decode("latin-1")
        elif raw == b"content-length" and declared is None:
            declared = value.decode("latin-1")
    return declared, found


def too_large(limit: int) -> TooLarge:
    """Returns the error for a body beyond its limit."""
    return TooLarge(f"the body is larger than {limit} bytes", hint="send less at a time")
