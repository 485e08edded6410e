"""Checkpoint relays: their registration at a pool's orchestrator, and the owner's list of allowed relays."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress
from protocol.wire.base import Milliseconds, WireModel
from protocol.wire.runs import RelayUrl

MOST_ALLOWED_RELAYS = 64


class RelayOffer(WireModel):
    """Registration of a relay's URL. The signer is the relay."""

    url: RelayUrl


class RelayLease(WireModel):
    """A relay's registration, which expires unless it is renewed."""

    relay: WireAddress
    url: RelayUrl
    expires_at_ms: Milliseconds
    again_in_ms: Milliseconds
    """Pause before the next renewal, in milliseconds."""


class KnownRelay(WireModel):
    """A relay that the owner allows."""

    relay: WireAddress
    url: RelayUrl | None = None
    """URL that the relay registered; None before its registration."""
    expires_at_ms: Milliseconds | None = None
    live: bool = False
    """Whether the relay is on the nodes' list now."""


class RelayList(WireModel):
    """All relays that the owner allows, in the order of their addresses."""

    relays: Annotated[tuple[KnownRelay, ...], Field(max_length=MOST_ALLOWED_RELAYS)] = ()
