"""A node's mailbox at a discovery service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.wire.base import WireModel
from protocol.wire.invites import SignedInvite

MAX_INVITES = 8
"""The most invites that wait for one node at a time; the one that expires first makes room."""


class InviteList(WireModel):
    """Answer of `GET /v1/nodes/{address}/invites`, signed by discovery; the one that expires last comes first."""

    invites: Annotated[tuple[SignedInvite, ...], Field(max_length=MAX_INVITES)]
