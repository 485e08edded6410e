"""Routes of the pool's money and of nodes' accounts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from orchestrator.api.access import NodePath, Reader
from orchestrator.dependencies import dependencies_of
from protocol.identifiers import WireAddress
from protocol.wire.money import NodeAccountPage, NodeAccountView, PoolMoneyView

router = APIRouter(prefix="/v1", tags=["pool"])


@router.get("/money")
async def get_money(_owner: Reader, request: Request) -> PoolMoneyView:
    """Return the pool's escrow, payments by day, burn rate, days left, and the coin of accounts that pay gas."""
    return await dependencies_of(request).money.pool()


@router.get("/money/nodes")
async def list_node_accounts(
    _owner: Reader,
    request: Request,
    *,
    after: Annotated[
        WireAddress | None, Query(pattern="^0x[0-9a-fA-F]{40}$", description="`next_cursor` of the last page")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> NodeAccountPage:
    """List earnings, slashes and verdicts of all known nodes, by address."""
    return await dependencies_of(request).money.nodes(after=after, limit=limit)


@router.get("/nodes/{node}/account", tags=["nodes"])
async def get_node_account(_owner: Reader, request: Request, node: NodePath) -> NodeAccountView:
    """Return earnings, slashes and verdicts of a node, as counted from the ledger's events."""
    return await dependencies_of(request).money.node(node)
