"""Logins and sessions of contributors in Redis. Codes and tokens are stored as SHA-256 only.

The Redis keys:

login:CODE              string: epoch, provider and signer of a one-time code; expires with the code
login-of:SIGNER         string: newest code of a signer, the only valid one; expires with the code
session:TOKEN           hash: provider, epoch and end of a session; expires with it
sessions:PROVIDER       sorted set: sessions of a provider, by their end
session-epoch:PROVIDER  string: number of revocations; codes and sessions of earlier epochs are not valid
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from orchestrator.store.database import Database
from protocol.identifiers import Address, address
from protocol.runtime.clock import milliseconds

LOGIN_LIFE = timedelta(minutes=5)
"""Validity of a one-time code."""
SESSION_LIFE = timedelta(hours=12)
"""Validity of a session."""
MOST_SESSIONS = 8
"""Maximum number of sessions per provider; a further one ends the one that would end first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An open session."""

    provider: Address
    ends_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedCode:
    """A used one-time code: its provider, and the provider's epoch when the code was made."""

    provider: Address
    epoch: int


class SessionStore:
    """Creates and ends sessions.

    Args:
        database: Database of the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def new_code(self, signer: Address, provider: Address) -> str:
        """Returns a new one-time code; an unused earlier code of the signer is no longer valid."""
        code = f"mlc_{secrets.token_urlsafe(32)}"
        life, name, owner = milliseconds(LOGIN_LIFE), self._key("login", _hash(code)), self._key("login-of", signer)
        epoch = await self._epoch(provider)
        await self._database.ask_many(
            [("SET", name, f"{epoch} {provider} {signer}", "PX", life), ("SET", owner, name, "PX", life)]
        )
        return code

    async def use_code(self, code: str) -> UsedCode | None:
        """Uses up a one-time code; returns None if it is unknown, used, expired, replaced or revoked."""
        name = self._key("login", _hash(code))
        found = await self._database.ask("GETDEL", name)
        if found is None:
            return None
        epoch, provider, signer = found.decode().split(" ")
        used = UsedCode(provider=address(provider), epoch=int(epoch))
        newest = await self._database.ask("GET", self._key("login-of", signer))
        if newest != name.encode() or used.epoch != await self._epoch(used.provider):
            return None
        return used

    async def begin(self, code: UsedCode, *, now_ms: int) -> tuple[str, Session]:
        """Begins a session; returns its token and the session."""
        token, provider = f"mse_{secrets.token_urlsafe(32)}", code.provider
        session = Session(provider=provider, ends_at_ms=now_ms + milliseconds(SESSION_LIFE))
        name, of_provider = self._key("session", _hash(token)), self._key("sessions", provider)
        found = await self._database.ask_many(
            [
                ("HSET", name, "provider", provider, "epoch", code.epoch, "ends", session.ends_at_ms),
                ("PEXPIRE", name, milliseconds(SESSION_LIFE)),
                ("ZREMRANGEBYSCORE", of_provider, "-inf", now_ms),
                ("ZADD", of_provider, session.ends_at_ms, name),
                ("PEXPIRE", of_provider, milliseconds(SESSION_LIFE)),
                ("ZRANGE", of_provider, 0, -MOST_SESSIONS - 1),
            ]
        )
        if found[-1]:
            await self._database.ask_many([("DEL", *found[-1]), ("ZREM", of_provider, *found[-1])])
        return token, session

    async def get(self, token: str, *, now_ms: int) -> Session | None:
        """Returns the session of a token; None if it is unknown, over or revoked."""
        name = self._key("session", _hash(token))
        provider, epoch, ends = await self._database.ask("HMGET", name, "provider", "epoch", "ends")
        if provider is None or ends is None or int(ends) <= now_ms:
            return None
        found = Session(provider=address(provider.decode()), ends_at_ms=int(ends))
        return found if int(epoch or 0) == await self._epoch(found.provider) else None

    async def end(self, token: str, provider: Address) -> None:
        """Ends one session."""
        name = self._key("session", _hash(token))
        await self._database.ask_many([("DEL", name), ("ZREM", self._key("sessions", provider), name)])

    async def end_all(self, provider: Address) -> int:
        """Ends all sessions of a provider, and makes its unused codes invalid; returns the number of sessions."""
        of_provider = self._key("sessions", provider)
        _, names, _ = await self._database.ask_many(
            [("INCR", self._key("session-epoch", provider)), ("ZRANGE", of_provider, 0, -1), ("DEL", of_provider)]
        )
        return int(await self._database.ask("DEL", *names)) if names else 0

    async def _epoch(self, provider: Address) -> int:
        return int(await self._database.ask("GET", self._key("session-epoch", provider)) or 0)

    def _key(self, *parts: str) -> str:
        return self._database.key(*parts)


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
