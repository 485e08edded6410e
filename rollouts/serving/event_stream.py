"""Answers a request while its client is connected; server-sent events to a client that may stop reading."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from protocol.errors import MusterError
from protocol.http.problems import problem_of
from protocol.http.serving.problem_answers import unexpected
from rollouts.serving.errors import error_object
from rollouts.serving.generation import Generation
from rollouts.serving.replies import DONE, StreamedReply, event

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


class EventStream(Response):
    """Streams an answer; stops the engine's work when the client disconnects or reads too slowly."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, reply: StreamedReply) -> None:
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._generation = generation
        self._reply = reply

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        with self._generation:
            await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        """Sends the events.

        While the client does not read, `send` waits and tokens collect in the generation, which stops at its limit.
        The client gets that error when it reads again; the server closes the connection if it does not.
        """
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            if first := self._reply.start():
                await send(_part(first))
            while news := await self._generation.news():
                if part := self._reply.events(news):
                    await send(_part(part))
            last = DONE
        except MusterError as error:
            last = event({"error": error_object(problem_of(error))})
        except Exception as error:  # noqa: BLE001 - the client learns of every error
            last = event({"error": error_object(problem_of(unexpected(error)))})
        await send(_part(last))
        await send({"type": "http.response.body", "body": b""})


def _part(content: bytes) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": True}
