"""Routes for nodes: heartbeats, logs and their own state."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope

from orchestrator.api.access import NODE_BODY, Node, NodeWithLogs, body
from orchestrator.api.views import node_views
from orchestrator.dependencies import parts_of
from orchestrator.nodes.heartbeat import HeartbeatService
from protocol.http.fast_routes import Express, FastResponse, signed_answer
from protocol.http.verification import RequestVerifier, verifier_of
from protocol.identity.keys import Key
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer, LogBatch, LogReceipt
from protocol.wire.pool import NodeSelf

HEARTBEAT = ("POST", "/v1/heartbeat")
HISTORY_OF_ITS_OWN = 100

router = APIRouter(prefix="/v1", tags=["nodes"])


def express_heartbeat(*, verifier: RequestVerifier, desk: HeartbeatService, key: Key) -> Express:
    """Heartbeats are nearly all of the load, so the front door calls this itself.

    Rate and nonce are checked by the same script that does the work, in one round trip.
    """

    async def serve(scope: Scope, receive: Receive) -> FastResponse:
        signed = await verifier.authenticate_raw(scope, receive, body_limit=NODE_BODY)
        return signed_answer(key, signed, await desk.answer(signed, ip=scope["muster.ip"]))

    return serve


@router.post("/heartbeat", response_model=HeartbeatAnswer, openapi_extra=body(Heartbeat))
async def heartbeat(request: Request) -> Response:
    """A node says how it is and hears what to do. Signed by the node; the answer by the pool's orchestrator."""
    parts = parts_of(request)
    serve = express_heartbeat(verifier=verifier_of(request), desk=parts.desk, key=parts.key)
    answer = await serve(request.scope, request.receive)
    response = Response(answer.body, answer.status)
    response.raw_headers = answer.headers
    return response


@router.post("/logs", response_model=LogReceipt, openapi_extra=body(LogBatch))
async def push_logs(signed: NodeWithLogs, request: Request) -> Response:
    """A node pushes lines of its assignment's output, because it was asked to. Lines that we have are skipped."""
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
