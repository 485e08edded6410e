"""Joining without gas: the pool's orchestrator carries the node's acceptance of its invite to the ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx
import structlog

from protocol.clients import ServiceLocation
from protocol.clients.node import NodeClient
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.invites import Join
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Deadline
from protocol.wire.invites import SignedInvite
from protocol.wire.relayed import JoinRequest, ReceiptState

PATIENCE = timedelta(seconds=60)
"""How long the orchestrator may take before the node pays for itself; invites last minutes."""

_LOOK_AGAIN = timedelta(seconds=1)
_log = structlog.get_logger(__name__)


class RelayedJoin:
    """Asks an orchestrator to carry a join.

    Args:
        key: The node's.
        clock: Whose time counts.
        allow_plain_http: Whether it may be spoken to without TLS.
        transport: For tests that serve the other side in the same process.
    """

    def __init__(
        self,
        key: Key,
        *,
        clock: Clock,
        allow_plain_http: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._key = key
        self._clock = clock
        self._allow_plain_http = allow_plain_http
        self._transport = transport

    async def carry(
        self, invite: SignedInvite, *, orchestrator: Address, is_member: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Whether the node is a member now; False if the orchestrator does not carry it, for whatever reason.

        Args:
            invite: One that was checked.
            orchestrator: Whose answers count.
            is_member: What the ledger says: the orchestrator's word alone is not enough.
        """
        signature = Join(invite_hash=invite.invite.hash).sign(self._key, invite.domain)
        joining = JoinRequest(invite=invite, signature="0x" + signature.hex())
        client = NodeClient(
            ServiceLocation(invite.url, orchestrator),
            key=self._key,
            clock=self._clock,
            allow_plain_http=self._allow_plain_http,
            transport=self._transport,
        )
        deadline = Deadline.after(PATIENCE, clock=self._clock)
        try:
            async with client:
                while not deadline.passed:
                    receipt = await client.join(joining)
                    if await is_member():
                        return True
                    if receipt.state is ReceiptState.REFUSED:
                        _log.warning("join-not-carried", reason=receipt.reason)
                        return False
                    await self._clock.sleep(_LOOK_AGAIN)
        except MusterError as error:
            _log.warning("join-not-carried", detail=error.detail, hint=error.hint)
            return False
        _log.warning("join-not-carried", reason=f"not within {PATIENCE}")
        return False
