"""Client of a discovery service.

Nodes register and fetch invites; pools list nodes and deposit invites.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from protocol.http.client import CALL_TIMEOUT, ServiceClient
from protocol.wire.federation import MOST_STATEMENTS, NodeStatementPage
from protocol.wire.invites import SignedInvite
from protocol.wire.mailbox import InviteList
from protocol.wire.nodes import NodePage, NodeRecord, Registration

LONGEST_WAIT = timedelta(seconds=30)
"""Maximum duration of one long poll. The service refuses longer ones."""
PAGE_LIMIT = 16 * 1024 * 1024
"""Size limit of a page of nodes, in bytes."""
STATEMENTS_LIMIT = 6 * 1024 * 1024
"""Size limit of a page of statements, in bytes: 100 bodies of 24 KiB, of which JSON can double the size."""


class DiscoveryClient(ServiceClient):
    """Client of a discovery service, for a node or a key of a pool.

    The service must sign the answers on which a node acts. Methods raise the service's errors, or `Unreachable`,
    `NoAnswer`, `DeadlinePassed` (see `protocol.http.client`).
    """

    # As a node

    async def register(self, registration: Registration) -> NodeRecord:
        """Registers the node or refreshes its record; returns the record.

        The node must call this again well before the record expires.

        Raises:
            NotFound: The ledger has no such pool.
            RateLimited: Too many nodes registered from this IP, or the service stores the maximum number of records for
                the pool.
        """
        answer = await self.call("PUT", self._own, body=registration, signed_answer=True)
        return answer.read(NodeRecord)

    async def record(self) -> NodeRecord:
        """Returns the node's own record.

        Raises:
            NotFound: The node is not registered, or its record has expired.
        """
        answer = await self.call("GET", self._own, signed_answer=True)
        return answer.read(NodeRecord)

    async def sign_off(self) -> None:
        """Deletes the node's record and invites."""
        await self.call("DELETE", self._own)

    async def invites(self, *, wait: timedelta = LONGEST_WAIT) -> tuple[SignedInvite, ...]:
        """Returns the node's invites, ordered by expiry, the latest first.

        If there are none, it waits for one up to `wait`, at most 30 s.

        The service returns an invite with every call until the invite expires or is acknowledged. The service can't
        forge invites, because the ledger checks the orchestrator's signature.
        """
        wait = min(wait, LONGEST_WAIT)
        answer = await self.call(
            "GET",
            f"{self._own}/invites",
            query={"wait": max(0, int(wait.total_seconds()))},
            signed_answer=True,
            call_timeout=_long_poll_timeout(wait) * 2,
            attempt_timeout=_long_poll_timeout(wait),
        )
        return answer.read(InviteList).invites

    async def acknowledge(self, invite: SignedInvite) -> None:
        """Tells the service that an invite was used, or can't be used.

        The service does not return the invite again.
        """
        await self.call("DELETE", f"{self._own}/invites/{invite.nonce}")

    # For keys of a pool

    async def page(self, pool_id: int, *, cursor: str | None = None, limit: int = 100) -> NodePage:
        """Returns a page of a pool's nodes, ordered by address.

        Raises:
            Forbidden: The client's key is not that of the pool's owner, manager, orchestrator or a validator.
            NotFound: The service knows no such pool.
        """
        query: dict[str, str | int] = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
        answer = await self.call("GET", f"/v1/pools/{pool_id}/nodes", query=query, answer_limit=PAGE_LIMIT)
        return answer.read(NodePage)

    async def nodes(self, pool_id: int, *, page_size: int = 100) -> AsyncIterator[NodeRecord]:
        """Yields all nodes of a pool; requests them page by page."""
        cursor: str | None = None
        while True:
            page = await self.page(pool_id, cursor=cursor, limit=page_size)
            for node in page.nodes:
                yield node
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    async def invite(self, invite: SignedInvite, *, call_timeout: timedelta = CALL_TIMEOUT) -> None:
        """Deposits an invite for the node that it names.

        Repeating the call has no effect.

        Raises:
            InvalidInput: The invite is malformed, expired, or for another ledger.
            Forbidden: The client's key, or the invite's signer, is not the pool's orchestrator.
            NotFound: The node is not registered with the service.
            Conflict: The node is registered for another pool.
        """
        await self.call(
            "POST", f"/v1/nodes/{invite.node}/invites", body=invite, repeatable=True, call_timeout=call_timeout
        )

    # For another discovery service

    async def statements(self, *, cursor: str | None = None, call_timeout: timedelta) -> NodeStatementPage:
        """Returns a page of the statements that nodes signed, ordered by the nodes' addresses.

        The caller must check the signatures.

        Raises:
            Forbidden: The client's key is not that of a peer of the service.
        """
        query: dict[str, str | int] = {"limit": MOST_STATEMENTS} | ({} if cursor is None else {"cursor": cursor})
        answer = await self.call(
            "GET",
            "/v1/federation/statements",
            query=query,
            call_timeout=call_timeout,
            attempt_timeout=call_timeout,
            answer_limit=STATEMENTS_LIMIT,
        )
        return answer.read(NodeStatementPage)

    @property
    def _own(self) -> str:
        return f"/v1/nodes/{self.own_key.address}"


def _long_poll_timeout(wait: timedelta) -> timedelta:
    """Returns the time limit of a long poll: the service's wait plus time to respond."""
    return wait + timedelta(seconds=10)
