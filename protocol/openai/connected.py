"""Answers a request while its client is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

_T = TypeVar("_T")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine, and cancels it when the client disconnects.

    Args:
        receive: The request's ASGI channel; the body was read.
        work: The coroutine.

    Raises:
        ClientDisconnect: The client disconnected.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


def body_part(content: bytes) -> Message:
    """Returns the ASGI message of a part of a streamed body."""
    return {"type": "http.response.body", "body": content, "more_body": True}
