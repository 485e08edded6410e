"""Answers to requests with an idempotency key in Redis, so that a repeated request is not executed again."""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from orchestrator.secrets import SecretCipher
from orchestrator.store.database import Database, new_id
from orchestrator.store.scripts import ClaimRequest, SettleRequest
from protocol.errors import Conflict, RateLimited, RequestInProgress
from protocol.identity.signing import unix_ms
from protocol.redis.connection import StoreUnavailable
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.logs import get_logger

CLAIM_LIFE = timedelta(minutes=2)
"""Time after which a request without an answer counts as dead, so that its key can be used again. It is longer than the
longest request, a ban, which waits for a transaction."""
ANSWER_KEPT = timedelta(days=1)
"""Time for which an answer is kept."""
MOST_ANSWERS = 1_000
"""Maximum number of one caller's kept answers and requests in progress. For a further request, the caller's oldest
answer is dropped, so that no caller can exclude another one."""
MOST_BYTES = 4 << 20
"""Maximum bytes of one caller's kept answers, as stored. The oldest ones are dropped first. The answer of a task with
the largest spec has 340 kB encrypted."""
RETRY_AFTER = timedelta(seconds=2)
"""Pause before a request is repeated whose first copy is in progress."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """Status, headers and body of an answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to execute one request with an idempotency key."""

    caller: str
    """Hash of the caller's name."""
    name: str
    value: str


class IdempotencyStore:
    """Claims idempotency keys, and keeps the answers of their requests.

    Redis has neither keys nor bodies. The name of a row is a hash, the fingerprint of a request is keyed with its
    idempotency key, and answers are encrypted, because that of a new webhook has a secret. Each caller has its own
    limits on the number and the bytes of its answers.

    Args:
        database: Database of the pool.
        cipher: Encrypts answers. Without a key, no answer has a secret, and answers are not encrypted.
        clock: Clock of the time for which answers are kept.
    """

    def __init__(self, database: Database, *, cipher: SecretCipher, clock: Clock) -> None:
        self._database = database
        self._cipher = cipher
        self._clock = clock

    async def claim(self, key: str, *, caller: str, route: str, target: str, body: bytes) -> Claim | StoredAnswer:
        """Claims a key for a request; returns the stored answer if the same request was answered before.

        Args:
            key: Value of the header `Idempotency-Key`.
            caller: Name of the token, or address of the manager.
            route: Method and path template.
            target: Path and query of the request.
            body: Body of the request.

        Raises:
            RequestInProgress: The same request is being served.
            Conflict: Another request had this key.
            RateLimited: The caller has `MOST_ANSWERS` requests in progress.
            StoreUnavailable: Redis is down.
        """
        name = hashlib.sha256("\n".join((caller, route, key)).encode()).hexdigest()
        fingerprint = hmac.new(key.encode(), target.encode() + b"\n" + body, hashlib.sha256).hexdigest()
        claim = Claim(caller=hashlib.sha256(caller.encode()).hexdigest(), name=name, value=new_id())
        try:
            found = await self._database.run(
                ClaimRequest(
                    caller=claim.caller,
                    name=name,
                    fingerprint=fingerprint,
                    claim=claim.value,
                    now_ms=self._now_ms(),
                    life_ms=milliseconds(CLAIM_LIFE),
                    most=MOST_ANSWERS,
                )
            )
        except StoreUnavailable:
            await self.release(claim)  # Redis may have stored the claim although its answer was lost
            raise
        match found.outcome:
            case "claimed":
                return claim
            case "answered":
                return self._decode(found.answer)
            case "in-progress":
                raise RequestInProgress("a request with this idempotency key is being served", retry_after=RETRY_AFTER)
            case "too-many":
                raise RateLimited(
                    f"this caller has {MOST_ANSWERS} requests with an idempotency key in progress, the maximum",
                    retry_after=RETRY_AFTER,
                    hint="wait for their answers, or send the request without an idempotency key",
                )
            case _:
                raise key_reused("another request was sent with this idempotency key")

    async def keep(self, claim: Claim, answer: StoredAnswer) -> None:
        """Stores the answer of a request. If Redis is down, the caller gets the answer nevertheless."""
        try:
            await self._settle(claim, self._encode(answer))
        except StoreUnavailable as error:
            _log.warning("answer-not-kept", reason=error.detail)

    async def release(self, claim: Claim) -> None:
        """Lets the key be used again, after an error. If Redis is down, the claim ends after `CLAIM_LIFE`."""
        with suppress(StoreUnavailable):
            await self._settle(claim, None)

    async def _settle(self, claim: Claim, answer: str | None) -> None:
        await self._database.run(
            SettleRequest(
                caller=claim.caller,
                name=claim.name,
                claim=claim.value,
                answer=answer,
                now_ms=self._now_ms(),
                kept_ms=milliseconds(ANSWER_KEPT),
                most_bytes=MOST_BYTES,
            )
        )

    def _encode(self, answer: StoredAnswer) -> str:
        text = json.dumps({"status": answer.status, "headers": answer.headers, "body": answer.body.decode()})
        return self._cipher.encrypt(text.encode()) if self._cipher.has_key else text

    def _decode(self, stored: str) -> StoredAnswer:
        text = stored if stored.startswith("{") else self._cipher.decrypt(stored)
        found = json.loads(text)
        headers = tuple((name, value) for name, value in found["headers"])
        return StoredAnswer(status=found["status"], headers=headers, body=found["body"].encode())

    def _now_ms(self) -> int:
        return unix_ms(self._clock.now())


def key_reused(detail: str) -> Conflict:
    """Returns the error for an idempotency key that another request had."""
    return Conflict(detail, hint="use a new random key for each request", code="idempotency-key-reused")


def created_id(kind: str, caller: str, key: str | None) -> str:
    """Returns the id of an object that a request creates; random without an idempotency key.

    With a key, the id follows from caller and key. So a request that is repeated after a crash, or after its stored
    answer has expired, finds the object.
    """
    if key is None:
        return new_id()
    return hashlib.sha256(f"muster-{kind}-v1\n{caller}\n{key}".encode()).hexdigest()[:32]
