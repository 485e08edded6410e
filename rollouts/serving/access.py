"""Bearer tokens of the service: one for clients, one for administration such as weight updates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import Request

from protocol.errors import Forbidden, InvalidInput, MusterError, Unauthenticated
from protocol.http.openapi import secured, token_with
from protocol.http.tokens import TokenBook, TokenSetting, bearer, book_of, hash_token, new_token
from protocol.identity.scopes import Scope
from protocol.runtime.files import create_atomically

_LONGEST_FILE = 1024


def token_in(path: Path) -> str:
    """Returns the token in a file; makes the file with a new token, readable by its owner only, if there is none.

    Raises:
        InvalidInput: The file can't be read or made.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            create_atomically(path, f"{new_token()}\n".encode())
        with path.open("rb") as file:
            return file.read(_LONGEST_FILE).decode("ascii", "replace").strip()
    except OSError as error:
        raise InvalidInput(
            f"the token file {path} can't be used: {error.strerror}", hint="name another file"
        ) from error


def token_book(token: str, *, admin: str | None) -> TokenBook:
    """Returns the tokens that the service accepts.

    Args:
        token: Token of clients.
        admin: Token that may also pause the service and update weights; may be the same; None if no token may.

    Raises:
        InvalidInput: A token has another form than `muster token new` prints.
    """
    found = {token: Scope.OPERATE} | ({} if admin is None else {admin: Scope.ADMIN})
    try:
        return TokenBook(
            TokenSetting(name=scope.value, scope=scope, hash=hash_token(each)) for each, scope in found.items()
        )
    except MusterError as error:
        raise InvalidInput(
            "the token file has no token",
            hint="name a file that does not exist, so that it is made; or write a token of `muster token new` into it",
        ) from error


def needs(scope: Scope) -> Callable[[Request], Awaitable[None]]:
    """Returns a FastAPI dependency that requires a token with a scope.

    The dependency raises `Unauthenticated` without a known token, and `Forbidden` for a token with a smaller scope.
    """

    async def dependency(request: Request) -> None:
        try:
            token = await book_of(request).check(bearer(request))
        except Unauthenticated as error:
            missing = error.code == "no-token"
            raise Unauthenticated(
                "this request needs a bearer token" if missing else "the token is not that of this service",
                hint="send `Authorization: Bearer` with the token in the service's token file",
                code="invalid-api-key",
            ) from None
        if not token.scope.includes(scope):
            raise Forbidden(
                "this token may not change what is served",
                hint="send the token in the file that `muster serve --admin-token-file` names",
                code="admin-token-needed",
            )

    return secured(dependency, token_with(scope))
