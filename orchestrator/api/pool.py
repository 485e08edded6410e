"""Route of the pool's overview."""

from __future__ import annotations

from fastapi import APIRouter, Request

from orchestrator.api.access import Reader
from orchestrator.dependencies import dependencies_of
from protocol.identity.signing import unix_ms
from protocol.versions import release
from protocol.wire.pool import Caller, PoolOverview

router = APIRouter(prefix="/v1", tags=["pool"])


@router.get("/pool")
async def get_pool(owner: Reader, request: Request) -> PoolOverview:
    """Return an overview of the pool, the orchestrator's time, and the caller's scope."""
    dependencies = dependencies_of(request)
    return PoolOverview(
        pool_id=dependencies.settings.pool_id,
        service=dependencies.key.address,
        release=release(),
        run=dependencies.settings.run if dependencies.slot_leasing is not None else None,
        time_ms=unix_ms(dependencies.clock.now()),
        nodes_known=await dependencies.nodes.count(),
        nodes_expected=await dependencies.nodes.expected(),
        removals_waiting=await dependencies.nodes.removals_waiting(),
        tasks_open=len(await dependencies.tasks.open_ids()),
        caller=Caller(name=owner.name, scope=owner.scope),
    )
