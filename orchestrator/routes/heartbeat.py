"""What nodes call: heartbeats, logs, and where they stand."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from orchestrator.parts import parts_of
from orchestrator.routes.access import NODE_BODY, Node, NodeWithLogs, body
from orchestrator.views import node_views
from protocol.signing import sign_response
from protocol.verification import verifier_of
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer, LogBatch, LogReceipt
from protocol.wire.pool import NodeSelf

HISTORY_OF_ITS_OWN = 100

router = APIRouter(prefix="/v1", tags=["nodes"])


@router.post("/heartbeat", response_model=HeartbeatAnswer, openapi_extra=body(Heartbeat))
async def heartbeat(request: Request) -> Response:
    """A node says how it is and hears what to do. Signed by the node; the answer by the pool's orchestrator.

    Rate and nonce are checked by the same script that does the work, in one round trip.
    """
    parts = parts_of(request)
    signed = await verifier_of(request).authenticate(request, body_limit=NODE_BODY)
    answer = await parts.desk.answer(signed, ip=request.scope["muster.ip"])
    headers = sign_response(parts.key, address=signed.address, nonce=signed.nonce, status=200, body=answer)
    return Response(answer, 200, headers, media_type="application/json")


async def _hot(request: Request) -> Response:
    request.scope["route"] = HOT  # as FastAPI does, for metrics by route
    return await heartbeat(request)


HOT = Route("/v1/heartbeat", _hot, methods=["POST"], include_in_schema=False)
"""The same route without what FastAPI does around it; OpenAPI describes the other."""


@router.post("/logs", response_model=LogReceipt, openapi_extra=body(LogBatch))
async def push_logs(signed: NodeWithLogs, request: Request) -> Response:
    """A node pushes lines of its assignment's output, because it was asked to. Lines that we have are skipped."""
    parts = parts_of(request)
    batch = signed.read(LogBatch)
    receipt = await parts.assignments.keep_lines(signed.address, batch.assignment_id, batch.lines)
    return signed.answer(parts.key, receipt)


@router.get("/nodes/me", response_model=NodeSelf)
async def me(signed: Node, request: Request) -> Response:
    """A node reads its own state and history."""
    parts = parts_of(request)
    row = await parts.nodes.get_known(signed.address)
    view = (await node_views(parts, [row]))[0]
    history = await parts.nodes.history(signed.address, limit=HISTORY_OF_ITS_OWN)
    return signed.answer(parts.key, NodeSelf(node=view, history=history))
