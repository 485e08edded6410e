"""Server-sent events to a client that may stop reading."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import MusterError
from protocol.http.problems import problem_of
from protocol.http.serving.problem_answers import unexpected
from protocol.openai.connected import body_part, while_connected
from protocol.openai.errors import error_object
from protocol.openai.replies import DONE, event
from rollouts.serving.generation import Generation
from rollouts.serving.replies import StreamedReply


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
                await send(body_part(first))
            while news := await self._generation.news():
                if part := self._reply.events(news):
                    await send(body_part(part))
            last = DONE
        except MusterError as error:
            last = event({"error": error_object(problem_of(error))})
        except Exception as error:  # noqa: BLE001 - the client learns of every error
            last = event({"error": error_object(problem_of(unexpected(error)))})
        await send(body_part(last))
        await send({"type": "http.response.body", "body": b""})
