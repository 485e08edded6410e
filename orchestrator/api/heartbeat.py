"""Routes for nodes: heartbeats, logs and their own state."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from orchestrator.api.access import NODE_BODY, Node, NodeWithLogs
from orchestrator.api.views import node_views
from orchestrator.dependencies import Dependencies, dependencies_of
from protocol.http.openapi import SIGNATURE, json_body
from protocol.http.verification import FastRoute, RequestVerifier, verifier_of
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer
from protocol.wire.logs import LogBatch, LogReceipt
from protocol.wire.pool import NodeSelf

HEARTBEAT = ("POST", "/v1/heartbeat")
"""Method and path of heartbeats."""
HISTORY_LIMIT = 100
"""Maximum number of state changes in the answer of `/nodes/me`."""

router = APIRouter(prefix="/v1", tags=["nodes"])


def fast_heartbeat(verifier: RequestVerifier, dependencies: Dependencies) -> FastRoute:
    """Returns a handler that answers heartbeats without FastAPI.

    Nearly all requests are heartbeats, and the objects that FastAPI makes for each request cost much CPU time
    (docs/decisions/0017).
    """
    return verifier.fast_route(dependencies.heartbeats.answer, key=dependencies.key, body_limit=NODE_BODY)


@router.post("/heartbeat", response_model=HeartbeatAnswer, openapi_extra=json_body(Heartbeat, security=(SIGNATURE,)))
async def send_heartbeat(request: Request) -> Response:
    """Store a node's state and return its assignment.

    The node signs the request, and the orchestrator signs the answer.

    The middleware serves this path with `fast_heartbeat`. This function describes the route in OpenAPI, and serves it
    with the same handler if a request gets past the middleware.
    """
    answer = await fast_heartbeat(verifier_of(request), dependencies_of(request))(request.scope, request.receive)
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.headers
    return response


@router.post("/logs", response_model=LogReceipt, openapi_extra=json_body(LogBatch))
async def push_logs(signed: NodeWithLogs, request: Request) -> Response:
    """Store log lines that a node pushes; skip lines that are stored already."""
    dependencies = dependencies_of(request)
    batch = signed.read(LogBatch)
    receipt = await dependencies.assignments.keep_lines(signed.address, batch)
    return signed.answer(dependencies.key, receipt)


@router.get("/nodes/me", response_model=NodeSelf)
async def get_own_node(signed: Node, request: Request) -> Response:
    """Return the state and history of the node that signed the request."""
    dependencies = dependencies_of(request)
    row = await dependencies.nodes.get_known(signed.address)
    view = (await node_views(dependencies, [row]))[0]
    history = await dependencies.nodes.history(signed.address, limit=HISTORY_LIMIT)
    return signed.answer(dependencies.key, NodeSelf(node=view, history=history))
