"""Passes invites on to the peer with which their nodes registered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from datetime import timedelta

from discovery.store.record_store import RecordStore
from protocol.clients import DiscoveryClient
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.runtime.logs import get_logger
from protocol.wire.invites import SignedInvite

MOST_WAITING = 1024
"""Maximum number of invites that wait for one peer."""
MOST_WAITING_OF_POOL = 256
"""Maximum number of invites of one pool that wait for one peer."""
SEND_TIMEOUT = timedelta(seconds=5)
"""Time limit of passing one invite on."""

_log = get_logger(__name__)


class InviteQueue:
    """Invites that wait for one peer, taken from each pool in turn. No I/O.

    A pool with many invites delays and displaces only its own ones: if the queue is full, the oldest invite of the pool
    with the most waiting invites is dropped. An orchestrator invites again.

    Args:
        most: Maximum number of waiting invites.
        most_of_pool: Maximum number of waiting invites of one pool.
    """

    def __init__(self, *, most: int = MOST_WAITING, most_of_pool: int = MOST_WAITING_OF_POOL) -> None:
        self._most = most
        self._most_of_pool = most_of_pool
        self._pools: dict[int, deque[SignedInvite]] = {}
        self._waiting = 0
        self._filled = asyncio.Event()

    def put(self, invite: SignedInvite) -> SignedInvite | None:
        """Adds an invite; returns the one that was dropped for it, if any."""
        own = self._pools.setdefault(invite.pool_id, deque())
        own.append(invite)
        self._waiting += 1
        self._filled.set()
        if len(own) > self._most_of_pool:
            return self._take(invite.pool_id)
        if self._waiting > self._most:
            return self._take(max(self._pools, key=lambda pool_id: len(self._pools[pool_id])))
        return None

    async def get(self) -> SignedInvite:
        """Waits for an invite and takes it out: the oldest one of the pool whose turn it is."""
        while not self._pools:
            self._filled.clear()
            await self._filled.wait()
        pool_id = next(iter(self._pools))
        taken = self._take(pool_id)
        if pool_id in self._pools:
            self._pools[pool_id] = self._pools.pop(pool_id)  # to the end: the other pools come first
        return taken

    def __len__(self) -> int:
        return self._waiting

    def _take(self, pool_id: int) -> SignedInvite:
        own = self._pools[pool_id]
        taken = own.popleft()
        self._waiting -= 1
        if not own:
            del self._pools[pool_id]
        return taken


class InviteForwarder:
    """Passes an invite on to the peer that the node polls, so that an orchestrator need not use that peer itself.

    Args:
        records: Records of the nodes.
        peers: Clients of the peers by address.
    """

    def __init__(self, records: RecordStore, peers: Mapping[Address, DiscoveryClient]) -> None:
        self._records = records
        self._peers = peers
        self._waiting = {peer: InviteQueue() for peer in peers}

    async def offer(self, invite: SignedInvite, *, poster: Address) -> None:
        """Queues an invite for the peer of its node, if there is one.

        An invite that came from a peer is not passed on, because two peers could send it back and forth.
        """
        if not self._peers or poster in self._peers:
            return
        peer = await self._records.audience(invite.node)
        if peer is None or peer not in self._waiting:
            return
        if (dropped := self._waiting[peer].put(invite)) is not None:
            self._log_failure(peer, dropped, reason="queue")

    async def send(self, peer: Address) -> None:
        """Sends queued invites to one peer until it is cancelled; a background loop."""
        client, queue = self._peers[peer], self._waiting[peer]
        while True:
            invite = await queue.get()
            try:
                await client.invite(invite, call_timeout=SEND_TIMEOUT)
            except MusterError as error:
                self._log_failure(peer, invite, reason=error.detail)

    def _log_failure(self, peer: Address, invite: SignedInvite, *, reason: str) -> None:
        url = self._peers[peer].location.url
        _log.info("invite-not-passed-on", peer=url, pool=invite.pool_id, node=invite.node, reason=reason)
