"""The client of a discovery service: for nodes (register, fetch invites) and for pools (list nodes, leave invites)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from protocol.clients.base import TypedClient, beyond
from protocol.wire.invites import SignedInvite
from protocol.wire.mailbox import InviteList
from protocol.wire.nodes import NodePage, NodeRecord, Registration

LONGEST_WAIT = timedelta(seconds=30)
"""Longest wait of one long poll; the service refuses longer ones."""
PAGE_LIMIT = 16 * 1024 * 1024


class DiscoveryClient(TypedClient):
    """Client of a discovery service, for a node or a key of a pool.

    Answers that a node acts upon must be signed by the service. Methods raise the service's errors, or
    `Unreachable`, `NoAnswer`, `DeadlinePassed` (see `protocol.http.client`).
    """

    # As a node

    async def register(self, registration: Registration) -> NodeRecord:
        """Registers the node or refreshes its record; returns the record. Call it again well before the record expires.

        Raises:
            NotFound: There is no such pool on the ledger.
            RateLimited: Too many nodes registered from this IP, or the service has no room for more records of the
                pool.
        """
        answer = await self.call("PUT", self._own, body=registration, signed_answer=True)
        return answer.read(NodeRecord)

    async def record(self) -> NodeRecord:
        """Returns the node's own record.

        Raises:
            NotFound: The node is not registered, or its record expired.
        """
        answer = await self.call("GET", self._own, signed_answer=True)
        return answer.read(NodeRecord)

    async def sign_off(self) -> None:
        """Deletes the node's record and invites."""
        await self.call("DELETE", self._own)

    async def invites(self, *, wait: timedelta = LONGEST_WAIT) -> tuple[SignedInvite, ...]:
        """Returns the node's invites, latest expiry first; waits up to `wait` (at most 30 s) if there are none.

        The service returns an invite again until it expires or is acknowledged. The ledger checks the orchestrator's
        signature, which the service can't forge.
        """
        wait = min(wait, LONGEST_WAIT)
        answer = await self.call(
            "GET",
            f"{self._own}/invites",
            query={"wait": max(0, int(wait.total_seconds()))},
            signed_answer=True,
            patience=beyond(wait) * 2,
            attempt_patience=beyond(wait),
        )
        return answer.read(InviteList).invites

    async def acknowledge(self, invite: SignedInvite) -> None:
        """Acknowledges an invite that was used or is unusable; it is not delivered again."""
        await self.call("DELETE", f"{self._own}/invites/{invite.nonce}")

    # For keys of a pool

    async def page(self, pool_id: int, *, cursor: str | None = None, limit: int = 100) -> NodePage:
        """Returns a page of a pool's nodes, ordered by address.

        Raises:
            Forbidden: The key is not owner, manager, orchestrator or validator of the pool.
            NotFound: There is no such pool.
        """
        query: dict[str, str | int] = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        answer = await self.call("GET", f"/v1/pools/{pool_id}/nodes", query=query, answer_limit=PAGE_LIMIT)
        return answer.read(NodePage)

    async def nodes(self, pool_id: int, *, page_size: int = 100) -> AsyncIterator[NodeRecord]:
        """Yields all nodes of a pool, page by page."""
        cursor: str | None = None
        while True:
            page = await self.page(pool_id, cursor=cursor, limit=page_size)
            for node in page.nodes:
                yield node
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    async def invite(self, invite: SignedInvite) -> None:
        """Deposits an invite for the node that it names; a repeated call has no effect.

        Raises:
            InvalidInput: The invite is malformed, expired, or for another ledger.
            Forbidden: The key, or the invite's signer, is not the pool's orchestrator.
            NotFound: The node is not registered with the service.
            Conflict: The node wants to join another pool.
        """
        await self.call("POST", f"/v1/nodes/{invite.node}/invites", body=invite, repeatable=True)

    @property
    def _own(self) -> str:
        return f"/v1/nodes/{self._own_address}"
