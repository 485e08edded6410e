"""Routes of checkpoint relays: relays register URLs, and the owner allows or denies relays."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from orchestrator.api.access import Node, Operator, Reader
from orchestrator.dependencies import dependencies_of
from protocol.http.openapi import json_body
from protocol.identifiers import EXAMPLE_ADDRESS, WireAddress
from protocol.wire.relays import KnownRelay, RelayLease, RelayList, RelayOffer

router = APIRouter(prefix="/v1/relays", tags=["relays"])

RelayPath = Annotated[
    WireAddress, Path(description="The relay's address", pattern="^0x[0-9a-fA-F]{40}$", examples=[EXAMPLE_ADDRESS])
]


@router.put("", response_model=RelayLease, openapi_extra=json_body(RelayOffer))
async def register_relay(signed: Node, request: Request) -> Response:
    """Register the signing relay, or renew its lease.

    Nodes receive its URL until the lease ends.
    """
    dependencies = dependencies_of(request)
    lease = await dependencies.checkpoint_relays.register(signed.address, signed.read(RelayOffer).url)
    return signed.answer(dependencies.key, lease)


@router.delete("", status_code=204)
async def deregister_relay(signed: Node, request: Request) -> None:
    """End the lease of the signing relay."""
    await dependencies_of(request).checkpoint_relays.leave(signed.address)


@router.get("")
async def list_relays(_owner: Reader, request: Request) -> RelayList:
    """List the allowed relays, each with its URL and whether its lease is live."""
    return RelayList(relays=tuple(await dependencies_of(request).checkpoint_relays.list()))


@router.put("/{relay}")
async def allow_relay(_owner: Operator, request: Request, relay: RelayPath) -> KnownRelay:
    """Allow a relay to register."""
    return await dependencies_of(request).checkpoint_relays.allow(relay)


@router.delete("/{relay}", status_code=204)
async def deny_relay(_owner: Operator, request: Request, relay: RelayPath) -> None:
    """End a relay's lease and forbid new ones."""
    await dependencies_of(request).checkpoint_relays.deny(relay)
