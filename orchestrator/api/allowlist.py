"""Route that lists the IPs of active nodes.

Firewalls of origins and relays use the list to admit only these nodes to checkpoint downloads.
"""

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
async def list_allowed_nodes(
    _owner: Admin,
    request: Request,
    *,
    cursor: Cursor = None,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of nodes to read; those without a known IP are left out")
    ] = 1000,
) -> AllowList:
    """List active nodes (healthy, unhealthy or draining) with the IP of their last heartbeat.

    The nodes are in the order of their addresses.
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
    """Returns whether `text` is an IP.

    Heartbeats over a Unix socket are recorded with `local` instead of an IP.
    """
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
