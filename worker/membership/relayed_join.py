"""Joins a pool through the orchestrator's relayer, which pays the gas.

The relayer sends the node's signed acceptance of an invite to the ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx

from protocol.clients import ServiceLocation
from protocol.clients.node import NodeClient
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.invites import Join
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Deadline
from protocol.wire.invites import SignedInvite
from protocol.wire.relayed import JoinRequest, ReceiptState

RELAYER_TIMEOUT = timedelta(seconds=60)
"""Time that the relayer gets before the node sends the transaction itself.

This time is short, because invites expire within minutes.
"""

_POLL_INTERVAL = timedelta(seconds=1)
_log = get_logger(__name__)


class RelayedJoin:
    """Joins a pool through its orchestrator's relayer.

    Args:
        key: The node's key.
        clock: Clock that measures the time-out and pauses.
        allow_plain_http: Whether the orchestrator's URL may be plain `http` to another machine.
        transport: HTTP transport for tests that serve the orchestrator in the same process.
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

    async def join(
        self, invite: SignedInvite, *, orchestrator: Address, is_member: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Joins through the relayer; returns whether the node is a member now.

        The result is False if the relayer refuses, fails or takes too long.

        Args:
            invite: A verified invite.
            orchestrator: Address of the key that must sign the answers.
            is_member: Function that reads the membership from the ledger. The relayer's answer alone is not trusted.
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
        deadline = Deadline.after(RELAYER_TIMEOUT, clock=self._clock)
        try:
            async with client:
                while not deadline.passed:
                    receipt = await client.join(joining)
                    if await is_member():
                        return True
                    if receipt.state is ReceiptState.REFUSED:
                        _log.warning("join-not-carried", reason=receipt.reason)
                        return False
                    await self._clock.sleep(_POLL_INTERVAL)
        except MusterError as error:
            _log.warning("join-not-carried", detail=error.detail, hint=error.hint)
            return False
        _log.warning("join-not-carried", reason=f"not within {RELAYER_TIMEOUT}")
        return False
