"""Checkpoint relays: they say where they serve, and the pool's owner says which of them nodes are told of."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from orchestrator.api.access import Node, Operator, Reader, body
from orchestrator.dependencies import parts_of
from protocol.identifiers import WireAddress
from protocol.wire.relays import KnownRelay, RelayLease, RelayList, RelayOffer

router = APIRouter(prefix="/v1/relays", tags=["relays"])

RelayPath = Annotated[WireAddress, Path(description="The relay's address", pattern="^0x[0-9a-fA-F]{40}$")]


@router.put("", response_model=RelayLease, openapi_extra=body(RelayOffer))
async def register(signed: Node, request: Request) -> Response:
    """Tells nodes of the relay that signs, until its lease ends; said again, the lease is renewed."""
    parts = parts_of(request)
    lease = await parts.checkpoint_relays.register(signed.address, signed.read(RelayOffer).url)
    return signed.answer(parts.key, lease)


@router.delete("", status_code=204)
async def leave(signed: Node, request: Request) -> None:
    """Tells nodes of the relay that signs no more."""
    await parts_of(request).checkpoint_relays.leave(signed.address)


@router.get("")
async def relays(_owner: Reader, request: Request) -> RelayList:
    """All relays that are allowed, and which of them nodes are told of now."""
    return RelayList(relays=tuple(await parts_of(request).checkpoint_relays.list()))


@router.put("/{relay}")
async def allow(_owner: Operator, request: Request, relay: RelayPath) -> KnownRelay:
    """Lets a relay register."""
    return await parts_of(request).checkpoint_relays.allow(relay)


@router.delete("/{relay}", status_code=204)
async def deny(_owner: Operator, request: Request, relay: RelayPath) -> None:
    """Tells nodes of a relay no more, and lets it register no more."""
    await parts_of(request).checkpoint_relays.deny(relay)
