"""Route of the pool's overview."""

from __future__ import annotations

from fastapi import APIRouter, Request

from orchestrator.api.access import Reader
from orchestrator.dependencies import parts_of
from protocol.identity.signing import unix_ms
from protocol.versions import release
from protocol.wire.pool import Caller, PoolOverview

router = APIRouter(prefix="/v1", tags=["pool"])


@router.get("/pool")
async def overview(owner: Reader, request: Request) -> PoolOverview:
    """Return an overview of the pool, the orchestrator's time, and the caller's scope."""
    parts = parts_of(request)
    return PoolOverview(
        pool_id=parts.settings.pool_id,
        service=parts.key.address,
        release=release(),
        run=parts.settings.run if parts.run is not None else None,
        time_ms=unix_ms(parts.clock.now()),
        nodes_known=await parts.nodes.count(),
        nodes_expected=await parts.nodes.expected(),
        removals_waiting=await parts.nodes.removals_waiting(),
        tasks_open=len(await parts.tasks.open_ids()),
        caller=Caller(name=owner.name, scope=owner.scope),
    )
