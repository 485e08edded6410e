"""Checkpoint relays: their registration with a pool, and the relays that the owner allows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress
from protocol.wire.base import Milliseconds, WireModel
from protocol.wire.runs import RelayUrl

MOST_ALLOWED_RELAYS = 64
"""Maximum number of relays that an owner can allow."""


class RelayOffer(WireModel):
    """Body of `PUT /v1/relays`: the URL of a relay.

    The signer of the request is the relay.
    """

    url: RelayUrl


class RelayLease(WireModel):
    """A relay's registration, which expires unless the relay renews it."""

    relay: WireAddress
    url: RelayUrl
    expires_at_ms: Milliseconds
    again_in_ms: Milliseconds
    """Milliseconds until the relay should renew its registration."""


class KnownRelay(WireModel):
    """A relay that the owner allows."""

    relay: WireAddress
    url: RelayUrl | None = None
    """URL that the relay registered; None if it has not registered yet."""
    expires_at_ms: Milliseconds | None = None
    live: bool = False
    """Whether the orchestrator currently names the relay to nodes."""


class RelayList(WireModel):
    """All relays that the owner allows, ordered by address."""

    relays: Annotated[tuple[KnownRelay, ...], Field(max_length=MOST_ALLOWED_RELAYS)] = ()
