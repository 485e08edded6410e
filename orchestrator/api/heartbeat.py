"""Routes for nodes: heartbeats, logs and their own state."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from orchestrator.api.access import NODE_BODY, Node, NodeWithLogs, body
from orchestrator.api.views import node_views
from orchestrator.dependencies import Dependencies, parts_of
from protocol.http.verification import FastRoute, RequestVerifier, verifier_of
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer, LogBatch, LogReceipt
from protocol.wire.pool import NodeSelf

HEARTBEAT = ("POST", "/v1/heartbeat")
HISTORY_OF_ITS_OWN = 100

router = APIRouter(prefix="/v1", tags=["nodes"])


def fast_heartbeat(verifier: RequestVerifier, parts: Dependencies) -> FastRoute:
    """Returns the fast route for heartbeats, which are nearly all of the load."""
    return verifier.fast_route(parts.heartbeats.answer, key=parts.key, body_limit=NODE_BODY)


@router.post("/heartbeat", response_model=HeartbeatAnswer, openapi_extra=body(Heartbeat))
async def heartbeat(request: Request) -> Response:
    """A node reports its state and receives its assignment. Signed by the node; the answer by the orchestrator.

    The middleware serves this path by the fast route; this one is its description in OpenAPI, and does the same.
    """
    answer = await fast_heartbeat(verifier_of(request), parts_of(request))(request.scope, request.receive)
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.headers
    return response


@router.post("/logs", response_model=LogReceipt, openapi_extra=body(LogBatch))
async def push_logs(signed: NodeWithLogs, request: Request) -> Response:
    """A node pushes lines of its assignment's output on request. Lines that are stored already are skipped."""
    parts = parts_of(request)
    batch = signed.read(LogBatch)
    receipt = await parts.assignments.keep_lines(signed.address, batch)
    return signed.answer(parts.key, receipt)


@router.get("/nodes/me", response_model=NodeSelf)
async def me(signed: Node, request: Request) -> Response:
    """A node reads its own state and history."""
    parts = parts_of(request)
    row = await parts.nodes.get_known(signed.address)
    view = (await node_views(parts, [row]))[0]
    history = await parts.nodes.history(signed.address, limit=HISTORY_OF_ITS_OWN)
    return signed.answer(parts.key, NodeSelf(node=view, history=history))
