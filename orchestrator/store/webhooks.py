"""Webhooks in Redis: URL, subscribed events, delivery position and encrypted secret."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pydantic import SecretStr

from orchestrator.secrets import SecretCipher
from orchestrator.store.database import Database
from orchestrator.store.idempotency import key_reused
from orchestrator.store.nodes import text_of
from orchestrator.store.scripts import RotateWebhook
from protocol.errors import Conflict, NotFound
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock, milliseconds
from protocol.wire.events import CreatedWebhook, NewWebhook, Webhook

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

    async def create(self, new: NewWebhook, *, identifier: str, cursor: str) -> CreatedWebhook:
        """Stores a new webhook for events after `cursor`; only this call returns its secret.

        If the webhook exists, because an earlier request with the same idempotency key created it, the call returns it.

        Raises:
            Conflict: The pool has `MOST_WEBHOOKS` webhooks already; or another webhook was created with this
                idempotency key.
            InvalidInput: The orchestrator has no key to encrypt the secret.
        """
        for found in await self.get_many([identifier]):
            if (found.webhook.url, found.webhook.events) != (new.url, new.events):
                raise key_reused(f"another webhook, {identifier}, was created with this idempotency key")
            secret = (await self.signing_secrets(identifier))[0].decode()
            return CreatedWebhook(webhook=found.webhook, secret=SecretStr(secret))
        if len(await self.ids()) >= MOST_WEBHOOKS:
            raise Conflict(
                f"the pool has {MOST_WEBHOOKS} webhooks, the maximum",
                hint="delete one of them",
                code="too-many-webhooks",
            )
        secret = secrets.token_urlsafe(32)
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
        now = unix_ms(self._clock.now())
        return [_progress(name, fields, now_ms=now) for name, fields in pairs if "url" in fields]

    async def rotate(self, identifier: str, *, overlap: timedelta, rotation: str) -> CreatedWebhook:
        """Gives a webhook a new secret, and returns it; until the overlap ends, the old one stays valid, too.

        Args:
            identifier: Id of the webhook.
            overlap: Time for which both secrets are valid.
            rotation: Id of the rotation. A repeated call with the same id returns the same secret.

        Raises:
            NotFound: There is no such webhook.
            Conflict: The old secret of an earlier rotation is still valid, and `overlap` is not zero.
            InvalidInput: The orchestrator has no key to encrypt the secret.
        """
        webhook = (await self.get(identifier)).webhook
        key, now = self._key(identifier), unix_ms(self._clock.now())
        done, sealed = await self._database.ask("HMGET", key, "rotation", "sealed")
        if done is not None and done.decode() == rotation:
            secret = self._cipher.decrypt(sealed.decode()).decode()
            return CreatedWebhook(webhook=webhook, secret=SecretStr(secret))
        if overlap and webhook.old_secret_until_ms is not None:
            left_s = (webhook.old_secret_until_ms - now) // 1000
            raise Conflict(
                f"the secret before the last rotation is valid for another {left_s} s",
                hint="wait until then; or rotate with the overlap 0, which ends all older secrets at once",
                code="rotation-in-progress",
            )
        secret = secrets.token_urlsafe(32)
        fields = {
            "sealed": self._cipher.encrypt(secret.encode()),
            "sealed_old": sealed.decode() if overlap else "",
            "old_until": str(now + milliseconds(overlap)),
            "rotation": rotation,
        }
        call = RotateWebhook(webhook=identifier, before=sealed.decode(), fields=fields)
        if not await self._database.run(call):
            raise Conflict(
                f"another request has rotated the secret of webhook {identifier}, or deleted it, just now",
                hint="read the webhook again and retry",
                retryable=True,
            )
        return CreatedWebhook(webhook=(await self.get(identifier)).webhook, secret=SecretStr(secret))

    async def signing_secrets(self, identifier: str) -> tuple[bytes, bytes | None]:
        """Returns the secret that signs deliveries, and the one before it while that is still valid."""
        key = self._key(identifier)
        sealed, old, until = await self._database.ask("HMGET", key, "sealed", "sealed_old", "old_until")
        secret = self._cipher.decrypt((sealed or b"").decode())
        is_valid = bool(old) and int(until) > unix_ms(self._clock.now())
        return secret, self._cipher.decrypt(old.decode()) if is_valid else None

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


def _progress(identifier: str, fields: dict[str, str], *, now_ms: int) -> WebhookProgress:
    old_until = int(fields.get("old_until") or 0)
    webhook = Webhook(
        id=identifier,
        url=fields["url"],
        events=tuple(json.loads(fields["events"])),
        created_at_ms=int(fields["created"]),
        delivered=int(fields.get("delivered", "0")),
        waiting=int(fields.get("failures", "0")) > 0,
        last_error=fields.get("error", ""),
        old_secret_until_ms=old_until if old_until > now_ms else None,
    )
    return WebhookProgress(
        webhook=webhook,
        cursor=fields["cursor"],
        failures=int(fields.get("failures", "0")),
        due_ms=int(fields.get("due", "0")),
    )
