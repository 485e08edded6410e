"""Finds the new URL of the pool's orchestrator through discovery services."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from protocol.clients import DiscoveryClient
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.invites import LONGEST_INVITE
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.invites import SignedInvite
from worker.chain.ledger_chain import LedgerChain
from worker.membership.joining import OrchestratorLocation, check_invite

MOST_INVITES = 16
"""Maximum number of invites that are read from one service. The invites are ordered by expiry, the latest first."""

_NOW = timedelta()
_log = get_logger(__name__)


class Relocation:
    """Finds an invite that names another orchestrator URL than the membership does.

    An orchestrator deposits invites at discovery services for members that send no heartbeats. An invite is accepted if
    it expires later than the invite with the current URL, but within `LONGEST_INVITE` from now, and if the ledger names
    its signer as the pool's current orchestrator. So a discovery service can neither invent a URL nor replay an older
    invite.

    Args:
        node: This node's address.
        chain: The ledger.
        services: Clients of the discovery services; services that are added later are asked, too.
        clock: Clock by which the expiry of invites is checked.
        allow_plain_http: Whether the orchestrator's URL may be plain `http` to another machine.
    """

    def __init__(
        self,
        *,
        node: Address,
        chain: LedgerChain,
        services: Sequence[DiscoveryClient],
        clock: Clock,
        allow_plain_http: bool,
    ) -> None:
        self._node = node
        self._chain = chain
        self._services = services
        self._clock = clock
        self._allow_plain_http = allow_plain_http
        self.outcome = ""
        """Result of the last search as text, with the time and the number of services that answered."""

    async def find(self, membership: OrchestratorLocation) -> OrchestratorLocation | None:
        """Returns the membership with the newer URL.

        None if there is no newer URL, or the chain does not answer.
        """
        answers = await asyncio.gather(*(self._invites(service) for service in self._services))
        now, found = self._clock.now(), [each for each in answers if each is not None]
        asked = f"{now:%H:%M:%S} UTC, {len(found)} of {len(answers)} discovery services answered: "
        latest = (now + LONGEST_INVITE).timestamp()
        invites = [
            invite for each in found for invite in each[:MOST_INVITES] if membership.expiry < invite.expiry <= latest
        ]
        self.outcome = asked + "no newer invite"
        if not invites:
            return None
        try:
            # The previous key stays valid for some time after a rotation. It may have been stolen, so it does not count
            # here.
            orchestrator = await self._chain.orchestrator()
        except MusterError as error:
            self.outcome = asked + f"the chain could not be read to check a newer invite: {error.detail}"
            return None
        self.outcome = asked + (
            f"newer invites ({len(invites)}) are not valid, or not signed by the pool's orchestrator {orchestrator}"
        )
        for invite in sorted(invites, key=lambda each: each.expiry, reverse=True):
            if self._signer(invite, membership.pool_id) != orchestrator:
                continue
            if invite.url == membership.url:
                self.outcome = asked + "the newest invite names the same URL"
                return None
            self.outcome = asked + f"a newer invite names {invite.url}"
            return replace(membership, url=invite.url, orchestrator=orchestrator, expiry=invite.expiry)
        return None

    async def _invites(self, service: DiscoveryClient) -> tuple[SignedInvite, ...] | None:
        """Returns the invites that wait at a service; None if it does not answer."""
        try:
            return await service.invites(wait=_NOW)
        except MusterError as error:
            _log.info("no-invites-read", discovery=service.location.url, detail=error.detail)
            return None

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
