"""Routes of the discovery service.

A caller is authorised before its request's body is parsed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from discovery.directory import NodeDirectory
from discovery.federation.forwarding import InviteForwarder
from discovery.store.records import DEFAULT_PER_PAGE, MOST_PER_PAGE, read_cursor
from protocol.errors import Forbidden
from protocol.http.openapi import json_body
from protocol.http.verification import SignedRequest, signed_request
from protocol.identifiers import EXAMPLE_ADDRESS, Address, WireAddress, address
from protocol.identity.keys import Key
from protocol.wire.base import MAX_INT64
from protocol.wire.federation import (
    MOST_BODY_BYTES,
    MOST_STATEMENTS,
    NodeStatement,
    NodeStatementPage,
    node_target,
)
from protocol.wire.identity import ServiceIdentity
from protocol.wire.invites import SignedInvite
from protocol.wire.mailbox import InviteList
from protocol.wire.nodes import NodePage, NodeRecord, Registration

LONGEST_WAIT_S = 30
"""Longest long poll, in seconds; below the idle time-out of common reverse proxies (60 s)."""
REGISTRATION_LIMIT = MOST_BODY_BYTES
"""Maximum bytes of a registration's request body."""
INVITE_LIMIT = 4 * 1024
"""Maximum bytes of an invite's request body."""

router = APIRouter(prefix="/v1")


async def _require_own_record(signer: Address, request: Request) -> None:
    """Refuses a request that was not signed by the node in its path."""
    named = address(request.path_params["node"])
    if signer != named:
        raise Forbidden(f"{signer} may not act for {named}", hint="sign with the node's own key", code="another-node")


ByNode = Annotated[SignedRequest, Depends(signed_request(authorize=_require_own_record, body_limit=REGISTRATION_LIMIT))]
ByAnybody = Annotated[SignedRequest, Depends(signed_request(body_limit=INVITE_LIMIT))]
NodePath = Annotated[
    WireAddress, Path(description="The node's address", pattern="^0x[0-9a-fA-F]{40}$", examples=[EXAMPLE_ADDRESS])
]
NoncePath = Annotated[
    str, Path(description="The invite's nonce, in decimal", pattern="^(0|[1-9][0-9]{0,77})$", examples=["42"])
]
PoolPath = Annotated[int, Path(description="The pool's number on the ledger", ge=1, le=MAX_INT64)]


@router.get("/identity", tags=["identity"])
async def get_identity(request: Request) -> ServiceIdentity:
    """Return the service's address and the contract of its pools.

    The answer is not signed. Clients that don't trust TLS pin the service's address in their settings.
    """
    pools = _directory(request).pools
    return ServiceIdentity(
        service="discovery", address=_key(request).address, chain_id=pools.chain_id, contract=pools.contract
    )


@router.put("/nodes/{node}", response_model=NodeRecord, tags=["nodes"], openapi_extra=json_body(Registration))
async def register_node(node: NodePath, signed: ByNode, request: Request) -> Response:
    """Register a node or refresh its record.

    The node signs the request, and this service signs the answer.
    """
    registration = signed.read(Registration)
    record = await _directory(request).register(
        _statement(signed, node, signed.body.decode()),
        registration,
        ip=request.scope.get("muster.ip", "local"),
        shareable=_is_shareable(signed),
    )
    return signed.answer(_key(request), record)


@router.get("/nodes/{node}", response_model=NodeRecord, tags=["nodes"])
async def get_node(node: NodePath, signed: ByNode, request: Request) -> Response:
    """Return a node's record to the node itself; other callers are refused."""
    return signed.answer(_key(request), await _directory(request).record(node))


@router.delete("/nodes/{node}", status_code=204, tags=["nodes"])
async def remove_node(node: NodePath, signed: ByNode, request: Request) -> Response:
    """Delete the node's record and invites."""
    shareable = _is_shareable(signed) and not signed.body  # a statement of a removal has no place for a body
    await _directory(request).remove(_statement(signed, node, None), shareable=shareable)
    return Response(status_code=204)


@router.get("/pools/{pool_id}/nodes", tags=["pools"])
async def list_pool_nodes(
    pool_id: PoolPath,
    signed: ByAnybody,
    request: Request,
    cursor: Annotated[str | None, Query(max_length=64, description="`next_cursor` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = DEFAULT_PER_PAGE,
) -> NodePage:
    """List the nodes that want to join a pool.

    Only the pool's owner, manager, orchestrator and validators may call this, because the records contain IPs.
    """
    return await _directory(request).page(pool_id, signed.address, after=read_cursor(cursor), most=limit)


@router.post("/nodes/{node}/invites", status_code=204, tags=["invites"], openapi_extra=json_body(SignedInvite))
async def post_invite(node: NodePath, signed: ByAnybody, request: Request) -> Response:
    """Store an invite. The pool's orchestrator key signs the invite, and the request unless a peer passes it on.

    If the node registered with a peer of this service, the invite is also passed on to that peer.
    """
    invite = signed.read(SignedInvite)
    await _directory(request).invite(node, invite, poster=signed.address)
    forwarder: InviteForwarder = request.app.state.forwarder
    await forwarder.offer(invite, poster=signed.address)
    return Response(status_code=204)


@router.get("/nodes/{node}/invites", response_model=InviteList, tags=["invites"])
async def list_invites(
    node: NodePath,
    signed: ByNode,
    request: Request,
    wait: Annotated[int, Query(ge=0, le=LONGEST_WAIT_S, description="Seconds to wait for the first invite")] = 0,
) -> Response:
    """Return the node's invites; with `wait`, by long poll.

    An invite is returned until it expires or the node acknowledges it.
    """
    found = await _directory(request).invites(
        node,
        ip=request.scope.get("muster.ip", "local"),
        longest_wait=timedelta(seconds=wait),
        stopping=request.app.state.stopping,
    )
    return signed.answer(_key(request), InviteList(invites=found))


@router.delete("/nodes/{node}/invites/{nonce}", status_code=204, tags=["invites"])
async def acknowledge_invite(node: NodePath, nonce: NoncePath, _signed: ByNode, request: Request) -> Response:
    """Delete an invite that the node has used or can't use."""
    await _directory(request).mailbox.acknowledge(node, nonce)
    return Response(status_code=204)


@router.get("/federation/statements", tags=["federation"])
async def list_statements(
    signed: ByAnybody,
    request: Request,
    cursor: Annotated[str | None, Query(max_length=64, description="`next_cursor` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_STATEMENTS)] = MOST_STATEMENTS,
) -> NodeStatementPage:
    """List registrations and removals as their nodes signed them, without IPs.

    Only other discovery services that this one names as peers may call this.
    """
    return await _directory(request).statements(signed.address, after=read_cursor(cursor), most=limit)


def _statement(signed: SignedRequest, node: Address, body: str | None) -> NodeStatement:
    return NodeStatement(
        node=node,
        audience=signed.audience,
        timestamp_ms=signed.timestamp_ms,
        nonce=signed.nonce,
        signature="0x" + signed.signature.hex(),
        body=body,
    )


def _is_shareable(signed: SignedRequest) -> bool:
    """Returns whether other services can check the signature: the node signed the path in its canonical form."""
    return signed.target == node_target(signed.address)


def _directory(request: Request) -> NodeDirectory:
    directory: NodeDirectory = request.app.state.directory
    return directory


def _key(request: Request) -> Key:
    key: Key = request.app.state.key
    return key
