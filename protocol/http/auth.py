"""Request signing as an httpx auth class: `auth=RequestSigner(...)` signs each attempt of each request."""

from __future__ import annotations

from collections.abc import Generator

import httpx

from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import NONCE_HEADER, check_response, sign_request
from protocol.runtime.clock import Clock, SystemClock


class RequestSigner(httpx.Auth):
    """Signs requests to one service with a fresh nonce and time.

    Args:
        key: Key of the sender.
        audience: Address of the service.
        clock: The system's by default.
    """

    requires_request_body = True

    def __init__(self, key: Key, *, audience: Address, clock: Clock | None = None) -> None:
        self._key = key
        self._audience = audience
        self._clock = SystemClock() if clock is None else clock

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the five headers, over the request line and the body as httpx will send them."""
        stamp = sign_request(
            self._key,
            audience=self._audience,
            method=request.method,
            target=request.url.raw_path.decode("ascii").removesuffix("?"),
            body=request.content,
            at=self._clock.now(),
        )
        request.headers.update(stamp.headers())
        yield request

    def check(self, request: httpx.Request, *, status: int, headers: httpx.Headers, body: bytes) -> None:
        """Returns if this answer to a request that we signed was signed by the audience.

        Raises:
            Unauthenticated: It was not; throw it away unread.
        """
        check_response(
            headers,
            service=self._audience,
            address=self._key.address,
            nonce=request.headers[NONCE_HEADER],
            status=status,
            body=body,
        )


class BearerToken(httpx.Auth):
    """Sends a pool owner's token. It is not signed, so it must only go over TLS or loopback."""

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the token."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def __repr__(self) -> str:
        return "BearerToken([redacted])"
