"""Allow list of checkpoint downloads: IPs of active nodes, for the firewalls of origins and relays."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated

from fastapi import APIRouter, Query, Request

from orchestrator.api.access import Admin
from orchestrator.api.nodes import Cursor
from orchestrator.dependencies import dependencies_of
from protocol.identifiers import address
from protocol.wire.pool import AllowedNode, AllowList

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


@router.get("/allowlist")
async def allowlist(
    _owner: Admin,
    request: Request,
    *,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Nodes read; the page may hold fewer")] = 1000,
) -> AllowList:
    """List healthy, unhealthy and draining nodes with the IP of their last heartbeat, in the order of their addresses.

    The IP is the source address of the connection, or the one that a trusted proxy reports. Nodes can't choose this IP.
    Banned, evicted, dead and departed nodes are not on the list.
    """
    dependencies = dependencies_of(request)
    looked = await dependencies.nodes.page(after=None if cursor is None else address(cursor), limit=limit)
    seen = await dependencies.nodes.last_ips(looked)
    return AllowList(
        nodes=tuple(AllowedNode(node=node, ip=ip_address(ip)) for node, ip in seen if _is_ip(ip)),
        next_cursor=looked[-1] if len(looked) == limit else None,
    )


def _is_ip(text: str) -> bool:
    """Returns False for requests over a unix socket, whose caller is named `local`."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
