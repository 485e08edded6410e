"""Opens sessions with a gateway for slots that the current task holds; the node's key stays in the worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx

from protocol.clients.gateway import GatewayClient
from protocol.errors import Conflict, InvalidInput
from protocol.http.client import BadAnswer
from protocol.http.location import ServiceLocation, check_service_url
from protocol.http.rates import IpRates, Rate
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Backoff
from protocol.wire.bridge import SessionWish
from protocol.wire.leases import SignedLease
from protocol.wire.runs import StepAnswer
from protocol.wire.serving import OpenSession, ServingSession
from protocol.wire.slots import SlotName

SESSION_RATE = Rate(count=60, per=timedelta(minutes=1), burst=16)
"""Rate limit of the task's requests for sessions."""
_BACKOFF = Backoff(attempts=3, most=timedelta(seconds=2))


class GatewaySessions:
    """Sessions of one task with the gateway that the orchestrator names.

    Args:
        key: The node's key, which signs requests for sessions.
        step: Function that returns the run's current step, with the gateway's URL.
        lease_of: Function that returns the verified lease of a slot that this task holds.
        clock: Clock of requests and rate limits. Its time must be that of the pool's services.
        allow_plain_http: Whether plain http to other machines is allowed.
        transport: HTTP transport to the gateway, for tests.
    """

    def __init__(
        self,
        *,
        key: Key,
        step: Callable[[], Awaitable[StepAnswer]],
        lease_of: Callable[[SlotName], SignedLease],
        clock: Clock,
        allow_plain_http: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._key = key
        self._step = step
        self._lease_of = lease_of
        self._clock = clock
        self._allow_plain_http = allow_plain_http
        self._transport = transport
        self._rates = IpRates(SESSION_RATE, clock=clock)
        self._client: GatewayClient | None = None

    async def open(self, wish: SessionWish) -> ServingSession:
        """Opens a session for a slot.

        Raises:
            NotFound: This task has no lease for the slot.
            Conflict: The lease has expired or was used; or the run has no gateway.
            RateLimited: The task opens sessions too often.
            InvalidInput: The gateway's URL is not allowed, for example because it is plain http.
            BadAnswer: The gateway's answer does not fit the lease.
            MusterError: The gateway's error, or the gateway does not answer.
        """
        self._rates.admit("task")
        lease = self._lease_of(SlotName(step=wish.step, index=wish.index))
        gateway = (await self._step()).gateway
        if not gateway:
            raise Conflict(
                "the run has no gateway",
                hint="the pool owner sets run_serving and run_gateway_url of the orchestrator, or posts the task "
                "without --serve",
                code="no-gateway",
            )
        client = await self._client_for(gateway)
        session = await client.open_session(OpenSession(lease=lease, arithmetic=wish.arithmetic))
        if session.ends_at_ms > lease.expiry * 1000:
            raise BadAnswer("the gateway's session ends after the lease", hint="tell the pool's owner")
        try:
            check_service_url(session.url, allow_plain_http=self._allow_plain_http)
        except InvalidInput as error:
            raise BadAnswer(f"the gateway names a URL that is not allowed: {error.detail}", hint=error.hint) from error
        return session

    async def aclose(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _client_for(self, gateway: str) -> GatewayClient:
        location = ServiceLocation.parse(gateway, allow_plain_http=self._allow_plain_http)
        if self._client is None or self._client.location != location:
            await self.aclose()
            self._client = GatewayClient(
                location,
                key=self._key,
                clock=self._clock,
                backoff=_BACKOFF,
                allow_plain_http=self._allow_plain_http,
                transport=self._transport,
            )
        return self._client
