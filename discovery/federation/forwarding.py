"""Passes invites on to the peer with which their nodes registered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from discovery.store.record_store import RecordStore
from protocol.clients import DiscoveryClient
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.runtime.logs import get_logger
from protocol.wire.invites import SignedInvite

MOST_WAITING = 1024
"""Maximum number of invites that wait for one peer. Beyond it they are dropped: an orchestrator invites again."""
SEND_TIMEOUT = timedelta(seconds=5)
"""Time limit of passing one invite on."""

_log = get_logger(__name__)


class InviteForwarder:
    """Passes an invite on to the peer that the node polls, so that an orchestrator need not use that peer itself.

    Args:
        records: Records of the nodes.
        peers: Clients of the peers by address.
    """

    def __init__(self, records: RecordStore, peers: Mapping[Address, DiscoveryClient]) -> None:
        self._records = records
        self._peers = peers
        self._waiting: dict[Address, asyncio.Queue[SignedInvite]] = {
            peer: asyncio.Queue(MOST_WAITING) for peer in peers
        }

    async def offer(self, invite: SignedInvite, *, poster: Address) -> None:
        """Queues an invite for the peer of its node, if there is one.

        An invite that came from a peer is not passed on, because two peers could send it back and forth.
        """
        if not self._peers or poster in self._peers:
            return
        peer = await self._records.audience(invite.node)
        if peer is None or peer not in self._waiting:
            return
        try:
            self._waiting[peer].put_nowait(invite)
        except asyncio.QueueFull:
            _log.warning("invite-not-passed-on", peer=self._peers[peer].location.url, node=invite.node, reason="queue")

    async def send(self, peer: Address) -> None:
        """Sends queued invites to one peer until it is cancelled; a background loop."""
        client, queue = self._peers[peer], self._waiting[peer]
        while True:
            invite = await queue.get()
            try:
                await client.invite(invite, call_timeout=SEND_TIMEOUT)
            except MusterError as error:
                _log.info("invite-not-passed-on", peer=client.location.url, node=invite.node, reason=error.detail)
