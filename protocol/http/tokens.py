"""Bearer tokens of pool owners, of which a service stores only scrypt hashes.

Each stored token has a name and a scope. A token has the form `mst_<id>_<secret>`. The id selects the hash, so a token
with an unknown id is refused without computing scrypt. The secret has 256 random bits. Verified tokens are cached by a
keyed digest, because scrypt takes tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from protocol.errors import Forbidden, InvalidInput, Unauthenticated
from protocol.http.openapi import SIGNATURE, secured, token_with
from protocol.http.verification import DEFAULT_BODY_LIMIT, check_declared_size, read_body, unprocessable, verifier_of
from protocol.identifiers import Address
from protocol.identity.scopes import Scope
from protocol.identity.signing import ADDRESS_HEADER
from protocol.runtime.threads import run_in_thread

Model = TypeVar("Model", bound=BaseModel)

SCRYPT_N = 2**14
SCRYPT_R = 8
"""Parameters N and r of scrypt: 16 MiB and about 40 ms per guess. Passwords would need more, but these secrets are
random."""

_TOKEN = re.compile(r"mst_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
_HASH = re.compile(r"scrypt\$([0-9a-f]{8})\$([A-Za-z0-9+/=]{24})\$([A-Za-z0-9+/=]{44})")


class TokenSetting(BaseModel):
    """A token as the settings describe it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(description="Name of the token's holder, for logs", min_length=1, max_length=63)
    scope: Scope
    hash: str = Field(description="Hash of the token, as `muster token hash` prints it")

    @field_validator("hash")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        if not _HASH.fullmatch(value):
            raise ValueError("this is not the hash of a token: `muster token new` creates a token and prints its hash")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRequest:
    """An authenticated request of the pool's owner or manager.

    The owner sends a token; the manager signs the request.
    """

    name: str
    """Name of the token, or address of the manager."""
    scope: Scope
    address: Address | None
    """Address of the manager; None for a token."""
    body: bytes
    idempotency_key: str | None = None
    """The request's idempotency key, if its route takes one."""

    def read(self, model: type[Model]) -> Model:
        """Parses the body as `model`.

        Raises:
            Unprocessable: The body is not valid JSON for `model`.
        """
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise unprocessable(error) from None


def new_token() -> str:
    """Returns a new random token.

    Show it to its holder once, and store only its hash.
    """
    return f"mst_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Returns the hash under which a token is stored.

    Raises:
        InvalidInput: The token is malformed. The error does not repeat it.
    """
    match = _TOKEN.fullmatch(token.strip())
    if match is None:
        raise InvalidInput("this is not a token", hint="`muster token new` creates one")
    salt = secrets.token_bytes(16)
    return f"scrypt${match[1]}${_text(salt)}${_text(_stretch(match[2], salt))}"


class TokenBook:
    """The bearer tokens that a service accepts.

    Args:
        tokens: Tokens in the settings.

    Raises:
        InvalidInput: Two tokens have the same id, or a hash is malformed.
    """

    def __init__(self, tokens: Iterable[TokenSetting]) -> None:
        self._by_id: dict[str, tuple[TokenSetting, bytes, bytes]] = {}
        self._known: dict[bytes, TokenSetting] = {}
        self._digest_key = secrets.token_bytes(32)
        self._turns = asyncio.Semaphore(2)  # limits the CPU time for a caller that knows an id and guesses secrets
        for setting in tokens:
            match = _HASH.fullmatch(setting.hash)
            if match is None or match[1] in self._by_id:
                raise InvalidInput(
                    f"the token {setting.name} has the same id as another token, or a malformed hash",
                    hint="replace it by the hash of a new token: `muster token new`",
                    code="invalid-setting",
                )
            self._by_id[match[1]] = (setting, base64.b64decode(match[2]), base64.b64decode(match[3]))

    async def check(self, token: str) -> TokenSetting:
        """Returns the setting of a token.

        Raises:
            Unauthenticated: The token is not in the settings.
        """
        digest = hmac.digest(self._digest_key, token.encode(), "sha256")
        if (known := self._known.get(digest)) is not None:
            return known
        match = _TOKEN.fullmatch(token)
        entry = self._by_id.get(match[1]) if match is not None else None
        if match is None or entry is None:
            raise _unknown()
        setting, salt, expected = entry
        async with self._turns:
            found = await run_in_thread(_stretch, match[2], salt)
        if not hmac.compare_digest(found, expected):
            raise _unknown()
        self._known[digest] = setting
        return setting


def owner_access(
    scope: Scope,
    *,
    is_manager: Callable[[Address, Request], Awaitable[bool]],
    body_limit: int = DEFAULT_BODY_LIMIT,
) -> Callable[[Request], Awaitable[OwnerRequest]]:
    """Returns a FastAPI dependency that authenticates requests to the pool owner's API.

    The dependency accepts a bearer token with the required scope, or a request signed by the pool's manager, who has
    every scope. The application keeps its tokens in `app.state.tokens`. As with `signed_request`, the route reads the
    body from the returned value.

    Args:
        scope: Required scope.
        is_manager: Function that returns whether an address is the pool's manager.
        body_limit: Maximum size of a body, in bytes.
    """

    async def authorize(address: Address, request: Request) -> None:
        if not await is_manager(address, request):
            raise Forbidden(
                f"{address} is not the pool's manager",
                hint="sign the request with the manager's key, or use a token",
                code="role",
            )

    async def dependency(request: Request) -> OwnerRequest:
        if ADDRESS_HEADER in request.headers:
            signed = await verifier_of(request).verify(request, authorize=authorize, body_limit=body_limit)
            return OwnerRequest(name=signed.address, scope=Scope.ADMIN, address=signed.address, body=signed.body)
        check_declared_size(request.headers.get("content-length"), body_limit)
        token = await book_of(request).check(bearer(request))
        if not token.scope.includes(scope):
            raise Forbidden(
                f"the token {token.name} has the scope {token.scope}; this request needs {scope}",
                hint="use a token with a wider scope",
                code="scope",
            )
        body = await read_body(request.receive, body_limit)
        return OwnerRequest(name=token.name, scope=token.scope, address=None, body=body)

    return secured(dependency, token_with(scope), SIGNATURE)


def book_of(request: Request) -> TokenBook:
    """Returns the tokens of the application that serves this request."""
    book = request.app.state.tokens
    if not isinstance(book, TokenBook):
        raise TypeError("app.state.tokens must be a TokenBook")
    return book


def bearer(request: Request) -> str:
    """Returns the bearer token of a request.

    Raises:
        Unauthenticated: The request has none.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Unauthenticated(
            "this request needs a token, or the signature of the pool's manager",
            hint="send the header `Authorization: Bearer mst_…`; `muster token new` creates a token",
            code="no-token",
        )
    return token.strip()


def _unknown() -> Unauthenticated:
    return Unauthenticated(
        "the token is not known to this pool",
        hint="check that the token is complete and belongs to this pool",
        code="bad-token",
    )


def _stretch(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=1, dklen=32, maxmem=64 * 1024 * 1024)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
