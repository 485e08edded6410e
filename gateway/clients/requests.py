"""Admits clients' requests, and follows their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gateway.chain.pool import CachedLedger
from gateway.clients.tokens import TokenRow, ended_token
from gateway.domain.forms import PREFIXES, Envelope
from gateway.errors import NotServing, QuotaExceeded, error_from
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings, Verify
from gateway.store.database import Database, Entry
from gateway.store.doorbell import LOOK_AGAIN, Doorbell
from gateway.store.scripts import AdmitClient, Admitted, CancelRequest
from protocol.errors import MusterError, NotFound, Unavailable
from protocol.identifiers import Digest, digest
from protocol.openai.bodies import ClientBody, GenerateBody, parse_body
from protocol.openai.errors import InvalidRequest, UnknownModel
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import token_hex
from protocol.runtime.waiting import wait_first
from protocol.wire.served import RequestKind

MOST_TOKENS = 65_536
"""Maximum number of new tokens of all choices of a request, because the task sends their record at once."""
ROW_BYTES = 1024
"""Size of a request in a list, besides its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """An admitted request."""

    id: str
    kind: RequestKind
    body: ClientBody
    envelope: Envelope
    digest: Digest
    admitted: float = field(repr=False)
    """Monotonic time of the admission in seconds."""


class ClientRequests:
    """Admits requests and follows their answers.

    Args:
        settings: Settings of the gateway.
        replica: This replica.
        database: State in Redis.
        ledger: The ledger, cached.
        doorbell: Wakes waiting clients.
        metrics: Counters.
        clock: Clock of waits.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        replica: str,
        database: Database,
        ledger: CachedLedger,
        doorbell: Doorbell,
        metrics: GatewayMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._replica = replica
        self._database = database
        self._ledger = ledger
        self._doorbell = doorbell
        self._metrics = metrics
        self._clock = clock

    async def served_version(self) -> tuple[int, Digest]:
        """Returns the version that answers requests for the model's name.

        It is the newest announced one, or the newest one with sessions while no worker serves that yet.

        Raises:
            NotServing: No version is announced.
        """
        served = await self._database.versions()
        try:
            version, newest = await self._ledger.latest()
        except (NotFound, Unavailable):
            if not served:
                raise NotServing("no version of the model is served yet") from None
        else:
            if newest in served or not served:
                return version, newest
        found, version = max(served.items(), key=lambda one: one[1])
        return version, Digest(found)

    async def version_of(self, model: str | None) -> Digest:
        """Returns the version that a request names.

        Raises:
            UnknownModel: The model is not served here.
            NotServing: No version is announced.
        """
        if model is None or model == self._settings.model_name:
            return (await self.served_version())[1]
        if model in await self._database.versions():
            return Digest(model)
        raise UnknownModel(
            f"the model {model[:100]!r} is not served here", hint=f"this service has {self._settings.model_name}"
        )

    async def admit(self, token: TokenRow, kind: RequestKind, content: bytes) -> ClientRequest:
        """Parses and admits a request, and gives it to a session or lets it wait.

        Raises:
            InvalidRequest: The body is wrong, or asks for something that is not supported.
            UnknownModel: Another model is named.
            QuotaExceeded: A limit of the token was reached.
            NotServing: No worker has served the version yet, or too many requests wait.
        """
        body = parse_body(kind, content)
        if not isinstance(body, GenerateBody):
            body.wants_usage()  # refuses options of a stream without one
        version = await self.version_of(body.model)
        if body.choices > self._settings.most_choices:
            raise InvalidRequest(
                "n",
                f"the request asks for {body.choices} answers; the limit is {self._settings.most_choices}",
                hint="ask for fewer",
            )
        text = _text(content)
        logprobs = body.wants_logprobs()
        identifier = token_hex(16)
        now = self._clock.now()
        shown = body.request_id if isinstance(body, GenerateBody) else None
        envelope = Envelope(
            identifier=shown or f"{PREFIXES[kind]}-{identifier[:24]}",
            created=int(now.timestamp()),
            model=self._settings.model_name,
            logprobs=logprobs,
        )
        admission = asyncio.ensure_future(
            self._database.scripts.run(
                AdmitClient(
                    id=identifier,
                    token=token.id,
                    replica=self._replica,
                    kind=kind.value,
                    digest=version,
                    choices=body.choices,
                    new_tokens=body.new_tokens or 0,
                    cost=len(json.dumps(text, ensure_ascii=False).encode()) + ROW_BYTES,
                    seed=digest(body.sampling.seed_bytes()),
                    verify=Verify.BEFORE.value if self._settings.verify is Verify.BEFORE else "",
                    with_pieces=logprobs and kind is not RequestKind.GENERATE,
                    now_ms=self._database.now_ms(),
                    most_waiting=self._settings.most_waiting,
                    most_tokens=MOST_TOKENS,
                    request_ms=round(self._settings.request_timeout_s * 1000),
                    form=envelope.encode(),
                    body=content,
                )
            )
        )
        try:
            admitted = await asyncio.shield(admission)
        except asyncio.CancelledError:  # the client is gone, and the script may have admitted the request
            await admission
            await self._database.scripts.run(CancelRequest(id=identifier, only_waiting=False))
            raise
        if admitted.outcome != "ok":
            raise _refusal(admitted, body)
        return ClientRequest(
            id=identifier,
            kind=kind,
            body=body,
            envelope=envelope,
            digest=version,
            admitted=self._clock.monotonic(),
        )

    async def entries(self, request: ClientRequest) -> AsyncGenerator[list[Entry], None]:
        """Yields the entries of a request's answer as they arrive; the last one has the end.

        Raises:
            NotServing: No worker answered in time.
        """
        last, quiet_since, first = "", request.admitted, True
        with self._doorbell.waiting(request.id) as rung:
            while True:
                rung.clear()
                found = await self._database.entries(request.id, after=last)
                if found:
                    if first:
                        self._metrics.first_token.observe(self._clock.monotonic() - request.admitted)
                        first = False
                    last, quiet_since = found[-1].id, self._clock.monotonic()
                    yield found
                    if found[-1].end:
                        return
                    continue
                await self._check_times(request, quiet_since)
                await wait_first(rung.wait(), self._clock.sleep(LOOK_AGAIN))

    async def cancel(self, request: ClientRequest) -> None:
        """Cancels a request whose client is gone."""
        await self._database.scripts.run(CancelRequest(id=request.id, only_waiting=False))

    async def _check_times(self, request: ClientRequest, quiet_since: float) -> None:
        now = self._clock.monotonic()
        if now - quiet_since >= self._settings.wait_timeout_s:
            state = await self._database.scripts.run(CancelRequest(id=request.id, only_waiting=True))
            if state == "waiting":
                raise NotServing(f"no worker had room for the request within {self._settings.wait_timeout_s:g} s")
            if not state:
                raise NotServing("the gateway lost the request")
        if now - request.admitted >= self._settings.request_timeout_s:
            raise NotServing(f"the request took longer than {self._settings.request_timeout_s:g} s")


def end_of(entry: Entry) -> dict[str, Any]:
    """Returns the record with which an answer ends.

    Raises:
        MusterError: The request ended without an answer.
    """
    found: dict[str, Any] = json.loads(entry.end)
    if "error" in found:
        raise error_from(found["error"])
    record: dict[str, Any] = found["record"]
    return record


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("body", "the body is not UTF-8") from None


def _refusal(admitted: Admitted, body: ClientBody) -> MusterError:
    match admitted.outcome:
        case "revoked" | "expired":
            return ended_token("was revoked" if admitted.outcome == "revoked" else "has expired")
        case "tokens":
            return InvalidRequest(
                "max_tokens",
                f"the request asks for {body.new_tokens} new tokens; the limit is {admitted.limit}",
                hint="ask for fewer",
            )
        case "size":
            return InvalidRequest(
                "n",
                f"all choices together may have more new tokens than the limit of {admitted.limit}",
                hint="ask for fewer answers or fewer tokens",
            )
        case "concurrent" | "minute" | "day":
            return _quota(admitted)
        case "full":
            return NotServing(f"{admitted.limit} requests wait for a worker, which is the limit")
    return NotServing("no worker serves this model yet")


_QUOTAS = {
    "concurrent": (
        "too-many-requests",
        "{} requests of this token are in progress, which is its limit",
        "wait for one of them",
    ),
    "minute": ("rate-limited", "this token may send {} requests per minute", "send fewer requests"),
    "day": (
        "insufficient-quota",
        "this token may use {} tokens per day (UTC), and the request may need more than are left",
        "wait for the next day, ask for fewer tokens, or ask the gateway's operator for more",
    ),
}
"""Code, text and hint for each limit of a token."""


def _quota(admitted: Admitted) -> QuotaExceeded:
    code, text, hint = _QUOTAS[admitted.outcome]
    wait = timedelta(milliseconds=max(1000, admitted.wait_ms))
    return QuotaExceeded(code, text.format(admitted.limit), retry_after=wait, hint=hint)
