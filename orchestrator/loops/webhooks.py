"""Loop that delivers the pool's events to webhooks.

Deliveries are signed, keep the order of the events, and are retried with back-off until the receiver accepts them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from datetime import timedelta
from functools import partial

import httpx

from orchestrator.dependencies import Dependencies
from orchestrator.domain.event_kinds import wants
from orchestrator.store.webhooks import WebhookProgress
from orchestrator.webhook_urls import check_destination
from protocol.errors import MusterError, Unavailable
from protocol.http.url_safety import directed_to
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.backoff import backoff
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import jittered
from protocol.wire.events import PoolEvent

SIGNATURE_HEADER = "X-Muster-Webhook-Signature"
NEW_SIGNATURE_HEADER = "X-Muster-Webhook-Signature-New"
"""Header with the new secret's signature while the old secret is still valid."""
TIMESTAMP_HEADER = "X-Muster-Webhook-Timestamp"
EVENT_HEADER = "X-Muster-Webhook-Event"

REQUEST_TIMEOUT = timedelta(seconds=10)
EVENTS_AT_ONCE = 100
RECEIVER_HINT = "check the webhook's receiver, which must answer 2xx within 10 s; the delivery is repeated"
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(hours=1)

_log = get_logger(__name__)


def signature_of(secret: bytes, *, timestamp: str, body: bytes) -> str:
    """Returns the signature of a delivery: hex HMAC-SHA256 over timestamp, a dot and the body."""
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class WebhookDelivery:
    """Delivers events to all webhooks concurrently, and to each webhook one event at a time.

    Args:
        dependencies: The orchestrator's dependencies.
        lease: The leader lease of this loop.
        http: HTTP client that follows no redirects.
    """

    def __init__(self, dependencies: Dependencies, *, lease: LeaderLease, http: httpx.AsyncClient) -> None:
        self._dependencies = dependencies
        self._lease = lease
        self._http = http
        self._in_flight: dict[str, asyncio.Task[None]] = {}

    async def round(self) -> None:
        """Starts a delivery to every webhook that is due.

        The round does not wait for the deliveries, so that a slow receiver does not delay others.
        """
        if not await self._lease.hold():
            return
        now = unix_ms(self._dependencies.clock.now())
        webhooks = self._dependencies.webhooks
        for delivery in await webhooks.get_many(await webhooks.ids()):
            name = delivery.webhook.id
            if delivery.due_ms <= now and name not in self._in_flight:
                task = asyncio.create_task(self._deliver(delivery))
                self._in_flight[name] = task
                task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._in_flight.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("webhook-crashed", webhook=name, exc_info=error)

    async def finish(self) -> None:
        """Waits for the deliveries in flight."""
        while self._in_flight:
            await asyncio.gather(*self._in_flight.values(), return_exceptions=True)

    async def _deliver(self, delivery: WebhookProgress) -> None:
        webhook, store = delivery.webhook, self._dependencies.webhooks
        events = await self._dependencies.events.after(delivery.cursor, limit=EVENTS_AT_ONCE)
        for event in events:
            if wants(webhook.events, event.kind):
                try:
                    await self._send(webhook.id, webhook.url, event)
                except MusterError as error:
                    failures = delivery.failures + 1
                    pause = jittered(backoff(FIRST_PAUSE, LONGEST_PAUSE, failures))
                    due = unix_ms(self._dependencies.clock.now() + pause)
                    await store.record_failure(webhook.id, failures=failures, due_ms=due, error=error.detail)
                    _log.info("webhook-failed", webhook=webhook.id, failures=failures, reason=error.detail)
                    return
                await store.advance(webhook.id, cursor=event.id, delivered=1)
        if events:
            await store.advance(webhook.id, cursor=events[-1].id, delivered=0)

    async def _send(self, name: str, url: str, event: PoolEvent) -> None:
        allow_private = self._dependencies.settings.webhooks_to_private_networks
        addresses = await check_destination(url, allow_private=allow_private)
        timestamp = str(unix_ms(self._dependencies.clock.now()) // 1000)
        body = event.model_dump_json().encode()
        secret, old = await self._dependencies.webhooks.signing_secrets(name)
        # Receivers that do not know of the rotation yet read the first header. So it keeps the old secret's signature
        # until the overlap ends.
        signatures = {SIGNATURE_HEADER: signature_of(old or secret, timestamp=timestamp, body=body)}
        if old is not None:
            signatures[NEW_SIGNATURE_HEADER] = signature_of(secret, timestamp=timestamp, body=body)
        request = self._http.build_request(
            "POST",
            url,
            content=body,
            headers={
                "Content-Type": "application/json",
                TIMESTAMP_HEADER: timestamp,
                EVENT_HEADER: event.id,
                **signatures,
            },
            timeout=REQUEST_TIMEOUT.total_seconds(),
        )
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT.total_seconds()):
                response = await self._http.send(directed_to(request, addresses[0]), stream=True)
                await response.aclose()
        except (httpx.HTTPError, TimeoutError) as error:
            raise Unavailable(f"the receiver did not answer: {type(error).__name__}", hint=RECEIVER_HINT) from error
        if not 200 <= response.status_code < 300:
            raise Unavailable(f"the receiver answered {response.status_code}", hint=RECEIVER_HINT)
