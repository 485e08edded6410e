"""JSON-RPC 2.0 server over HTTP POST, for single requests and batches of limited size."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ledger.devchain.embedded.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcError,
    invalid,
)
from ledger.devchain.embedded.methods import METHODS
from ledger.devchain.embedded.node import EmbeddedChain
from protocol.runtime.waiting import cancel_all

MAX_BODY = 2 * 1024 * 1024
MAX_BATCH = 1_000

_log = logging.getLogger(__name__)


def build_app(node: EmbeddedChain, *, block_time: timedelta | None, gather: timedelta | None = None) -> Starlette:
    """Returns the HTTP application; it also runs the mining loop if `block_time` is given.

    Args:
        node: The chain.
        block_time: The longest time between blocks; None starts no mining loop.
        gather: Time from a transaction's arrival to an early block, which includes other transactions that arrive
            meanwhile. None mines only at the block time.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        miner = asyncio.create_task(_mine_forever(node, block_time, gather)) if block_time is not None else None
        try:
            yield
        finally:
            if miner is not None:
                await cancel_all([miner])
            node.store.close()

    async def serve(request: Request) -> Response:
        return await _answer(node, request)

    return Starlette(routes=[Route("/", serve, methods=["POST"])], lifespan=lifespan)


async def dispatch(node: EmbeddedChain, request: object) -> dict[str, Any] | None:
    """Returns the response to one JSON-RPC request; None for a notification."""
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        return _failed(None, RpcError("invalid request", code=INVALID_REQUEST))
    try:
        result = await _run(node, request["method"], request.get("params") or [])
    except RpcError as error:
        answer = _failed(request.get("id"), error)
    except Exception:  # noqa: BLE001 - a bug in one method must not end the batch or the server
        _log.exception("%s failed", request["method"])
        answer = _failed(request.get("id"), RpcError("internal error", code=INTERNAL_ERROR))
    else:
        answer = {"jsonrpc": "2.0", "id": request.get("id"), "result": result}
    return answer if "id" in request else None


async def _run(node: EmbeddedChain, name: str, given: object) -> object:
    method = METHODS.get(name)
    if method is None:
        raise RpcError(f"the method {name[:80]} does not exist", code=METHOD_NOT_FOUND)
    if not isinstance(given, list):
        raise invalid("params must be a list")
    return await method(node, given)


async def _answer(node: EmbeddedChain, request: Request) -> Response:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return _json(_failed(None, RpcError(f"request larger than {MAX_BODY} bytes", code=INVALID_REQUEST)), 413)
    try:
        # pydantic's parser limits the nesting. With `json`, deeply nested JSON would crash the process, because py-evm
        # raises Python's recursion limit.
        parsed = from_json(bytes(body))
    except ValueError:
        return _json(_failed(None, RpcError("parse error", code=PARSE_ERROR)))
    if not isinstance(parsed, list):
        return _json(await dispatch(node, parsed))
    if not 0 < len(parsed) <= MAX_BATCH:
        return _json(_failed(None, RpcError(f"a batch has 1 to {MAX_BATCH} requests", code=INVALID_REQUEST)))
    answers = [await dispatch(node, single) for single in parsed]
    return _json([answer for answer in answers if answer is not None])


def _json(content: object, status: int = 200) -> Response:
    if content is None:
        return Response(status_code=204)
    return Response(json.dumps(content, separators=(",", ":")), status_code=status, media_type="application/json")


def _failed(request_id: object, error: RpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": error.body()}


async def _mine_forever(node: EmbeddedChain, block_time: timedelta, gather: timedelta | None) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due += block_time.total_seconds()
        early = gather is not None and await _gathered(node, gather, until=due)
        if not early:
            await asyncio.sleep(max(0.0, due - loop.time()))
        node.arrived.clear()
        try:
            await node.mine()
        except Exception:  # noqa: BLE001 - the mining loop must survive a failed block
            _log.exception("could not mine a block; trying again at the next block time")
        # An early block restarts the interval. After a stall the due time moves up, to avoid a burst of blocks.
        due = loop.time() if early else max(due, loop.time() - block_time.total_seconds())


async def _gathered(node: EmbeddedChain, gather: timedelta, *, until: float) -> bool:
    """Waits for a transaction and then for `gather`.

    Returns False if the loop's time reaches `until` first.
    """
    try:
        async with asyncio.timeout_at(until):
            await node.arrived.wait()
            await asyncio.sleep(gather.total_seconds())
    except TimeoutError:
        return False
    return True
