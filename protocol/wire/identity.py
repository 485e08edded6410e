"""Identity of a service: the audience of requests to it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress
from protocol.wire.base import MAX_INT64, ShortText, WireModel


class ServiceIdentity(WireModel):
    """Answer of `GET /v1/identity`; only as trustworthy as the TLS connection, unless the address is pinned."""

    service: ShortText
    address: WireAddress
    """Audience of requests, and signer of answers."""
    chain_id: Annotated[int, Field(ge=1, le=MAX_INT64)]
    """Chain of the ledger that the service reads."""
    contract: WireAddress
    """`ComputePools` on that chain."""
