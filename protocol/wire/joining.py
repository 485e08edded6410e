"""What a contributor needs to join a pool: the contracts and the discovery services."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from protocol.identifiers import EXAMPLE_ADDRESS, WireAddress
from protocol.wire.base import MAX_INT64, PoolId, ShortText, WireModel

MOST_DISCOVERY = 16
"""Maximum number of discovery services of a pool."""

DiscoveryLocation = Annotated[
    str, StringConstraints(min_length=1, max_length=512), Field(examples=["https://discovery.example"])
]


class LedgerDeployment(WireModel):
    """Addresses of the ledger's contracts on one chain: the content of `deployment.json`."""

    chain_id: Annotated[int, Field(ge=1, le=MAX_INT64)]
    block: Annotated[int, Field(ge=0, le=MAX_INT64)]
    """First block that can contain events of the contracts."""
    contracts: Annotated[
        dict[ShortText, WireAddress], Field(max_length=32, examples=[{"ComputePools": EXAMPLE_ADDRESS}])
    ]
    """Address of each contract by its name."""
    version: ShortText
    """Version of the contracts."""


class JoiningInformation(WireModel):
    """Answer of `GET /v1/joining`.

    The orchestrator signs it. A contributor compares the signer with the pool's orchestrator key on the ledger.
    """

    pool_id: PoolId
    deployment: LedgerDeployment
    discovery: Annotated[tuple[DiscoveryLocation, ...], Field(max_length=MOST_DISCOVERY)]
    """URLs of the discovery services from which the pool invites nodes; `#0x…` pins a service's address."""
