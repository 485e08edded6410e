"""Webhooks in Redis: URL, subscribed events, delivery position and encrypted secret."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import SecretStr

from orchestrator.secrets import SecretCipher
from orchestrator.store.database import Database, new_id
from orchestrator.store.nodes import text_of
from protocol.errors import Conflict, NotFound
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.pool import CreatedWebhook, NewWebhook, Webhook

MOST_WEBHOOKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookProgress:
    """A webhook with its delivery position."""

    webhook: Webhook
    cursor: str
    """Id of the last event that was delivered or skipped."""
    failures: int
    """Number of failed attempts to deliver the next event."""
    due_ms: int
    """Earliest time of the next attempt, in Unix milliseconds."""


class WebhookStore:
    """Reads and writes webhooks.

    Args:
        database: Database of the pool.
        cipher: Encrypts secrets.
        clock: Clock of time stamps.
    """

    def __init__(self, database: Database, *, cipher: SecretCipher, clock: Clock) -> None:
        self._database = database
        self._cipher = cipher
        self._clock = clock

    async def create(self, new: NewWebhook, *, cursor: str) -> CreatedWebhook:
        """Stores a new webhook for events after `cursor`; only this call returns its secret.

        Raises:
            Conflict: The pool has `MOST_WEBHOOKS` webhooks already.
            InvalidInput: The orchestrator has no key to encrypt the secret.
        """
        if len(await self.ids()) >= MOST_WEBHOOKS:
            raise Conflict(
                f"the pool has {MOST_WEBHOOKS} webhooks, the maximum",
                hint="delete one of them",
                code="too-many-webhooks",
            )
        identifier, secret = new_id(), secrets.token_urlsafe(32)
        fields = {
            "url": new.url,
            "events": json.dumps(new.events),
            "created": str(unix_ms(self._clock.now())),
            "sealed": self._cipher.encrypt(secret.encode()),
            "cursor": cursor,
            "delivered": "0",
            "failures": "0",
            "due": "0",
            "error": "",
        }
        flat = [part for pair in fields.items() for part in pair]
        await self._database.ask_many(
            [
                ("HSET", self._key(identifier), *flat),
                ("SADD", self._database.key("webhooks"), identifier),
            ]
        )
        return CreatedWebhook(webhook=(await self.get(identifier)).webhook, secret=SecretStr(secret))

    async def ids(self) -> list[str]:
        """Returns the ids of all webhooks."""
        members = await self._database.ask("SMEMBERS", self._database.key("webhooks"))
        return sorted(member.decode() for member in members)

    async def get(self, identifier: str) -> WebhookProgress:
        """Returns a webhook.

        Raises:
            NotFound: There is no such webhook.
        """
        found = await self.get_many([identifier])
        if not found:
            raise NotFound(
                f"there is no webhook {identifier}", hint="`muster pool webhooks` lists them", code="unknown-webhook"
            )
        return found[0]

    async def get_many(self, identifiers: Sequence[str]) -> list[WebhookProgress]:
        """Returns the webhooks that exist, in the order of the ids."""
        hashes = await self._database.ask_many([("HGETALL", self._key(name)) for name in identifiers])
        pairs = zip(identifiers, (text_of(raw) for raw in hashes), strict=True)
        return [_progress(name, fields) for name, fields in pairs if "url" in fields]

    async def secret(self, identifier: str) -> bytes:
        """Returns the secret that signs deliveries."""
        sealed = await self._database.ask("HGET", self._key(identifier), "sealed")
        return self._cipher.decrypt((sealed or b"").decode())

    async def delete(self, identifier: str) -> None:
        """Deletes a webhook.

        Raises:
            NotFound: There is no such webhook.
        """
        removed, _ = await self._database.ask_many(
            [("SREM", self._database.key("webhooks"), identifier), ("DEL", self._key(identifier))]
        )
        if not removed:
            raise NotFound(
                f"there is no webhook {identifier}", hint="`muster pool webhooks` lists them", code="unknown-webhook"
            )

    async def advance(self, identifier: str, *, cursor: str, delivered: int) -> None:
        """Records that all events up to `cursor` were delivered or skipped."""
        if await self._database.ask("EXISTS", self._key(identifier)):
            await self._database.ask_many(
                [
                    ("HSET", self._key(identifier), "cursor", cursor, "failures", 0, "due", 0, "error", ""),
                    ("HINCRBY", self._key(identifier), "delivered", delivered),
                ]
            )

    async def record_failure(self, identifier: str, *, failures: int, due_ms: int, error: str) -> None:
        """Records a failed delivery, and the time of the next attempt."""
        if await self._database.ask("EXISTS", self._key(identifier)):
            await self._database.ask(
                "HSET", self._key(identifier), "failures", failures, "due", due_ms, "error", error[:200]
            )

    def _key(self, identifier: str) -> str:
        return self._database.key("webhook", identifier)


def _progress(identifier: str, fields: dict[str, str]) -> WebhookProgress:
    webhook = Webhook(
        id=identifier,
        url=fields["url"],
        events=tuple(json.loads(fields["events"])),
        created_at_ms=int(fields["created"]),
        delivered=int(fields.get("delivered", "0")),
        waiting=int(fields.get("failures", "0")) > 0,
        last_error=fields.get("error", ""),
    )
    return WebhookProgress(
        webhook=webhook,
        cursor=fields["cursor"],
        failures=int(fields.get("failures", "0")),
        due_ms=int(fields.get("due", "0")),
    )
