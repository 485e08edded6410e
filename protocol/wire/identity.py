"""Identity of a service, which clients need to sign requests to it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress
from protocol.wire.base import MAX_INT64, ShortText, WireModel


class ServiceIdentity(WireModel):
    """Answer of `GET /v1/identity`.

    It is only as trustworthy as the TLS connection, unless the client knows the address from elsewhere.
    """

    service: ShortText
    address: WireAddress
    """Audience of requests to the service, and signer of its answers."""
    chain_id: Annotated[int, Field(ge=1, le=MAX_INT64)]
    """Id of the chain whose ledger the service reads."""
    contract: WireAddress
    """Address of the contract `ComputePools` on that chain."""
