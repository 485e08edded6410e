"""Server-sent events: streams values as JSON until the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import cast

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from orchestrator.dependencies import Dependencies
from protocol.errors import MusterError, RateLimited

LOOK = timedelta(milliseconds=300)
"""Pause between two reads for new items; each read costs one small Redis command per stream."""
KEEP_ALIVE_LOOKS = 50
"""Number of reads without new items (15 s) after which a comment line is sent, so that proxies don't disconnect."""

EVENTS_DESCRIPTION = (
    "With `follow`: server-sent events. Each has an `id` and one line of `data`, a {} as JSON. Lines that begin with a "
    "colon are comments. An event `error` has the code of a problem, and the stream ends after it."
)
"""Description of a stream in OpenAPI, with a placeholder for the schema of its data."""

Read = Callable[[], Awaitable[Sequence[tuple[str, BaseModel]]]]
"""Function that returns the items since its last call, each with the id after which a client can resume."""


def follow(dependencies: Dependencies, request: Request, read: Read) -> StreamingResponse:
    """Streams the items of `read` until the client disconnects or the service stops.

    Raises:
        RateLimited: The maximum number of streams is open.
    """
    check_stream_slots(dependencies)
    stopping: asyncio.Event = request.app.state.stopping
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return _Stream(_lines(dependencies, read, stopping), media_type="text/event-stream; charset=utf-8", headers=headers)


class _Stream(StreamingResponse):
    """Response that closes its iterator at the end, so that the stream gives its slot back at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lines = cast("AsyncGenerator[str, None]", self.body_iterator)
        async with aclosing(lines):
            await super().__call__(scope, receive, send)


def check_stream_slots(dependencies: Dependencies) -> None:
    """Checks that another stream or blocking read may be opened.

    Raises:
        RateLimited: The maximum number is open.
    """
    if dependencies.stream_slots.locked():
        raise RateLimited(
            f"{dependencies.settings.streams} streams and blocking reads are open already",
            retry_after=timedelta(seconds=10),
            hint="wait 10 s and try again, close other streams, or raise the orchestrator's setting `streams`",
        )


async def _lines(dependencies: Dependencies, read: Read, stopping: asyncio.Event) -> AsyncIterator[str]:
    quiet = 0
    async with dependencies.stream_slots:
        yield ": following\n\n"
        while not stopping.is_set():
            try:
                found = await read()
            except MusterError as error:
                # The event names the reason. The client opens a new stream after the last id that it received.
                yield f"event: error\ndata: {error.code}\n\n"
                return
            for name, value in found:
                yield f"id: {name}\ndata: {value.model_dump_json()}\n\n"
            quiet = 0 if found else quiet + 1
            if quiet >= KEEP_ALIVE_LOOKS:
                quiet = 0
                yield ": still here\n\n"
            if not found:
                await dependencies.clock.sleep(LOOK)
