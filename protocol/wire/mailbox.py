"""A node's mailbox at a discovery service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.wire.base import WireModel
from protocol.wire.invites import SignedInvite

MAX_INVITES = 8
"""Maximum number of stored invites for one node. When it is reached, a new invite replaces the one that expires first.
"""


class InviteList(WireModel):
    """Answer of `GET /v1/nodes/{address}/invites`, signed by the discovery service.

    The invites are ordered by expiry, the latest first.
    """

    invites: Annotated[tuple[SignedInvite, ...], Field(max_length=MAX_INVITES)]
