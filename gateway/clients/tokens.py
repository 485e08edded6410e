"""Tokens of clients and verifiers, of which Redis has only scrypt hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cachetools import LRUCache

from gateway.store.database import Database
from gateway.store.scripts import WriteToken
from protocol.enumerations import WireEnum
from protocol.errors import Conflict, NotFound, Unauthenticated
from protocol.http.tokens import TokenBook, TokenSetting, hash_token, new_token
from protocol.identity.scopes import Scope
from protocol.redis.connection import store_errors

MOST_BOOKS = 4096
"""Maximum number of tokens whose verified secrets are cached."""
MOST_TOKENS = 100_000
"""Maximum number of tokens that are listed."""


class GatewayRole(WireEnum):
    """Role of a token's holder."""

    CLIENT = "client"
    """Send requests."""
    VERIFIER = "verifier"
    """Take answers and say whether they are valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenQuota:
    """Limits of a token.

    Args:
        per_minute: Maximum requests per minute.
        concurrent: Maximum requests in progress.
        per_day: Maximum tokens per day (UTC), of prompts and answers; 0 for any number.
        life: Time until the token expires; None: never.
    """

    per_minute: int = 600
    concurrent: int = 64
    per_day: int = 0
    life: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A token, as listed. Times are Unix milliseconds; 0 for a token that never expires."""

    id: str
    name: str
    role: GatewayRole
    created_ms: int
    expires_ms: int
    per_minute: int
    concurrent: int
    per_day: int
    revoked: bool
    used_today: int


class TokenStore:
    """Creates, lists, revokes and checks tokens.

    Args:
        database: State in Redis.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._books: LRUCache[tuple[str, bytes], TokenBook] = LRUCache(MOST_BOOKS)

    async def create(self, name: str, role: GatewayRole, quota: TokenQuota) -> str:
        """Stores a new token's hash, and returns the token, which is shown only here.

        Raises:
            Conflict: The name is taken.
        """
        token = new_token()
        now = self._database.now_ms()
        written = await self._database.scripts.run(
            WriteToken(
                id=_id_of(token),
                name=name,
                role=role.value,
                hash=hash_token(token),
                now_ms=now,
                expires_ms=0 if quota.life is None else now + round(quota.life.total_seconds() * 1000),
                per_minute=quota.per_minute,
                concurrent=quota.concurrent,
                per_day=quota.per_day,
            )
        )
        if not written:
            raise Conflict(
                f"there is a token with the name {name} already",
                hint="choose another name; `muster gateway token list` shows all",
                code="name-taken",
            )
        return token

    async def list(self) -> Sequence[TokenRow]:
        """Returns all tokens by name, revoked ones included."""
        database, keys = self._database, self._database.keys
        today = str(database.now_ms() // 86_400_000)
        with store_errors():
            names: dict[bytes, bytes] = await database.redis.hgetall(keys.of("token-names"))
            identifiers = [each.decode() for _, each in sorted(names.items())][:MOST_TOKENS]
            async with database.redis.pipeline(transaction=False) as pipe:
                for identifier in identifiers:
                    pipe.hgetall(keys.of("token", identifier))
                    pipe.hget(keys.of("day", identifier), today)
                found = await pipe.execute()
        return [
            _row(identifier, fields, int(used or 0))
            for identifier, fields, used in zip(identifiers, found[::2], found[1::2], strict=True)
            if fields
        ]

    async def revoke(self, name: str) -> None:
        """Refuses further requests with a token; those in progress go on.

        Raises:
            NotFound: There is no token with this name.
        """
        keys, redis = self._database.keys, self._database.redis
        with store_errors():
            identifier = await redis.hget(keys.of("token-names"), name)
            if identifier is None:
                raise NotFound(f"there is no token {name}", hint="`muster gateway token list` shows all")
            await redis.hset(keys.of("token", identifier.decode()), "revoked", 1)

    async def check(self, token: str) -> TokenRow:
        """Returns the row of a token that is valid now.

        Raises:
            Unauthenticated: The token is unknown, revoked or expired.
        """
        identifier = _id_of(token)
        if not identifier:
            raise invalid_token()
        with store_errors():
            fields = await self._database.redis.hgetall(self._database.keys.of("token", identifier))
        if not fields:
            raise invalid_token()
        row = _row(identifier, fields, 0)
        book = self._books.get((identifier, fields[b"hash"]))
        if book is None:
            setting = TokenSetting(name=row.name, scope=Scope.OPERATE, hash=fields[b"hash"].decode())
            book = self._books[identifier, fields[b"hash"]] = TokenBook([setting])
        try:
            await book.check(token)
        except Unauthenticated:
            raise invalid_token() from None
        if row.revoked or 0 < row.expires_ms <= self._database.now_ms():
            raise ended_token("was revoked" if row.revoked else "has expired")
        return row


def invalid_token() -> Unauthenticated:
    """Returns the error for a token that this gateway does not know."""
    return Unauthenticated(
        "the token is not known to this gateway",
        hint="send `Authorization: Bearer` with a token of `muster gateway token create`",
        code="invalid-api-key",
    )


def ended_token(what: str) -> Unauthenticated:
    """Returns the error for a token that is valid no longer."""
    return Unauthenticated(f"the token {what}", hint="ask the gateway's operator for a new one", code="invalid-api-key")


def _id_of(token: str) -> str:
    parts = token.split("_", 2)
    plain = len(token) <= 128 and len(parts) == 3 and parts[1].isascii() and parts[1].isalnum()
    return parts[1] if plain else ""


def _row(identifier: str, fields: dict[bytes, bytes], used: int) -> TokenRow:
    return TokenRow(
        id=identifier,
        name=fields[b"name"].decode(),
        role=GatewayRole(fields[b"role"].decode()),
        created_ms=int(fields[b"created"]),
        expires_ms=int(fields[b"expires"]),
        per_minute=int(fields[b"per_minute"]),
        concurrent=int(fields[b"concurrent"]),
        per_day=int(fields[b"per_day"]),
        revoked=fields[b"revoked"] == b"1",
        used_today=used,
    )
