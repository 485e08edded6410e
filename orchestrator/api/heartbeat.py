"""Routes for nodes: heartbeats, logs and their own state."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from orchestrator.api.access import NODE_BODY, Node, NodeWithLogs, body
from orchestrator.api.views import node_views
from orchestrator.dependencies import Dependencies, dependencies_of
from protocol.http.verification import FastRoute, RequestVerifier, verifier_of
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer, LogBatch, LogReceipt
from protocol.wire.pool import NodeSelf

HEARTBEAT = ("POST", "/v1/heartbeat")
HISTORY_LIMIT = 100

router = APIRouter(prefix="/v1", tags=["nodes"])


def fast_heartbeat(verifier: RequestVerifier, dependencies: Dependencies) -> FastRoute:
    """Returns the fast route for heartbeats, which are nearly all of the load."""
    return verifier.fast_route(dependencies.heartbeats.answer, key=dependencies.key, body_limit=NODE_BODY)


@router.post("/heartbeat", response_model=HeartbeatAnswer, openapi_extra=body(Heartbeat))
async def heartbeat(request: Request) -> Response:
    """Store a node's state and return its assignment. The node signs the request, the orchestrator the answer.

    The middleware serves this path with the fast route. This function calls the same route and describes it in OpenAPI.
    """
    answer = await fast_heartbeat(verifier_of(request), dependencies_of(request))(request.scope, request.receive)
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.headers
    return response


@router.post("/logs", response_model=LogReceipt, openapi_extra=body(LogBatch))
async def push_logs(signed: NodeWithLogs, request: Request) -> Response:
    """Store log lines that a node pushes on request. Lines that are stored already are skipped."""
    dependencies = dependencies_of(request)
    batch = signed.read(LogBatch)
    receipt = await dependencies.assignments.keep_lines(signed.address, batch)
    return signed.answer(dependencies.key, receipt)


@router.get("/nodes/me", response_model=NodeSelf)
async def me(signed: Node, request: Request) -> Response:
    """Return the state and history of the node that signed the request."""
    dependencies = dependencies_of(request)
    row = await dependencies.nodes.get_known(signed.address)
    view = (await node_views(dependencies, [row]))[0]
    history = await dependencies.nodes.history(signed.address, limit=HISTORY_LIMIT)
    return signed.answer(dependencies.key, NodeSelf(node=view, history=history))
