"""Finds the pool's orchestrator again when its URL has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog

from protocol.clients import DiscoveryClient
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.invites import LONGEST_INVITE
from protocol.runtime.clock import Clock
from protocol.wire.invites import SignedInvite
from worker.chain.ledger_chain import WorkerChain
from worker.membership.joining import OrchestratorLocation, check_invite

MOST_INVITES = 16
"""Invites of one discovery service that are looked at, those that expire last first."""

_NOW = timedelta()
_log = structlog.get_logger(__name__)


class Relocation:
    """Asks discovery for an invite that names another URL than the membership does.

    An orchestrator leaves invites for members that it does not hear. One is taken if it expires after the invite that
    the present URL came from, but within `LONGEST_INVITE`, and if the ledger names its signer as the pool's present
    orchestrator. A discovery service can therefore neither make up a URL nor bring an older one back.

    Args:
        node: This node.
        chain: The ledger.
        services: Clients of the discovery services.
        clock: Tells whether an invite has expired.
        allow_plain_http: Whether the orchestrator may be spoken to without TLS.
    """

    def __init__(
        self,
        *,
        node: Address,
        chain: WorkerChain,
        services: Sequence[DiscoveryClient],
        clock: Clock,
        allow_plain_http: bool,
    ) -> None:
        self._node = node
        self._chain = chain
        self._services = tuple(services)
        self._clock = clock
        self._allow_plain_http = allow_plain_http

    async def of(self, membership: OrchestratorLocation) -> OrchestratorLocation | None:
        """Returns the membership with the newer URL; None if there is none, or if the chain can't be asked."""
        found = await asyncio.gather(*(self._invites(service) for service in self._services))
        latest = (self._clock.now() + LONGEST_INVITE).timestamp()
        invites = [
            invite for each in found for invite in each[:MOST_INVITES] if membership.expiry < invite.expiry <= latest
        ]
        if not invites:
            return None
        try:
            # A replaced key may sign until its stated end. It may have been stolen, so it moves no worker.
            orchestrator = await self._chain.orchestrator()
        except MusterError as error:
            _log.info("newer-invite-not-checked", detail=error.detail)
            return None
        for invite in sorted(invites, key=lambda each: each.expiry, reverse=True):
            if self._signer(invite, membership.pool_id) != orchestrator:
                continue
            if invite.url == membership.url:
                return None  # the newest good invite says that the orchestrator is where it was
            return replace(membership, url=invite.url, orchestrator=orchestrator, expiry=invite.expiry)
        return None

    async def _invites(self, service: DiscoveryClient) -> tuple[SignedInvite, ...]:
        try:
            return await service.invites(wait=_NOW)
        except MusterError as error:
            _log.info("no-invites-read", discovery=service.location.url, detail=error.detail)
            return ()

    def _signer(self, invite: SignedInvite, pool_id: int) -> Address | None:
        try:
            return check_invite(
                invite,
                node=self._node,
                pool_id=pool_id,
                domain=self._chain.invites_domain,
                now_s=self._clock.now().timestamp(),
                allow_plain_http=self._allow_plain_http,
            )
        except MusterError:
            return None
