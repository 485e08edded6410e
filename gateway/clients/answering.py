"""Writes answers to clients, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.clients.requests import ClientRequest, ClientRequests, end_of
from gateway.domain.answers import CollectedAnswer, SentTokens
from gateway.domain.forms import answer_form, whole_answer
from gateway.domain.parts import read_part
from gateway.errors import AnswerChanged
from gateway.metrics import GatewayMetrics
from gateway.store.database import Entry
from protocol.errors import MusterError
from protocol.http.problems import problem_of
from protocol.http.serving.problem_answers import unexpected
from protocol.openai.bodies import GenerateBody
from protocol.openai.connected import body_part, while_connected
from protocol.openai.errors import error_object
from protocol.openai.replies import DONE, FINISH_REASONS, ReplyFormat, event, usage_of
from protocol.wire.answers import AnswerRecord
from protocol.wire.serving import AnswerTokens


class ClientAnswers:
    """Answers clients' requests.

    Args:
        requests: Admits requests and follows their answers.
        metrics: Counters.
        held: Whether clients get answers only after a verifier's result, so that streams begin then.
    """

    def __init__(self, requests: ClientRequests, *, metrics: GatewayMetrics, held: bool) -> None:
        self.requests = requests
        self._metrics = metrics
        self._held = held

    async def respond(self, receive: Receive, start: Callable[[], Awaitable[ClientRequest]]) -> Response:
        """Admits a request, and answers it while its client is connected.

        Args:
            receive: The request's ASGI channel; the body was read.
            start: Admits the request.

        Raises:
            ClientDisconnect: The client disconnected; the request was cancelled.
            MusterError: The request was refused or not answered.
        """
        return await while_connected(receive, self._respond(start))

    async def _respond(self, start: Callable[[], Awaitable[ClientRequest]]) -> Response:
        request: ClientRequest | None = None
        try:
            request = await start()
            usage = None if isinstance(request.body, GenerateBody) else request.body.wants_usage()
            if usage is None:
                async with aclosing(self.requests.entries(request)) as batches:
                    content = await self._whole(request, batches)
                self.count("answered")
                return Response(content, media_type="application/json")
            stream = AnswerStream(self, request, with_usage=usage, held=self._held)
            await stream.wait()
        except BaseException as error:
            self.count(_outcome(error))
            if request is not None:
                await self.requests.cancel(request)
            raise
        return stream

    def count(self, outcome: str) -> None:
        """Counts the end of a request."""
        self._metrics.requests.labels(outcome).inc()

    async def _whole(self, request: ClientRequest, batches: AsyncGenerator[list[Entry], None]) -> bytes:
        attempt, arithmetic = 0, ""
        collected = CollectedAnswer(request.body.choices)
        async for entries in batches:
            for entry in entries:
                if entry.end:
                    record = AnswerRecord.model_validate(end_of(entry))
                    form = _form(request, arithmetic)
                    return whole_answer(form, request.kind, collected, record)
                if entry.attempt != attempt:
                    attempt, collected = entry.attempt, CollectedAnswer(request.body.choices)
                arithmetic = entry.arithmetic
                collected.add(read_part(entry.part))
        raise RuntimeError("the entries of an answer have no end")


class AnswerStream(Response):
    """Streams an answer as server-sent events; cancels the request when the client disconnects.

    A client that reads slowly delays only itself: parts wait in Redis, where the answer's size is bounded. The server
    closes the connection of a client that does not read at all.

    Args:
        answers: Answers clients' requests.
        request: The admitted request.
        with_usage: Whether the stream ends with the numbers of tokens.
        held: Whether the stream begins after the end of the answer.
    """

    media_type = "text/event-stream"

    def __init__(self, answers: ClientAnswers, request: ClientRequest, *, with_usage: bool, held: bool) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answers = answers
        self._request = request
        self._with_usage = with_usage
        self._held = held
        self._entries = answers.requests.entries(request)
        self._first: list[Entry] = []
        self._sent = SentTokens(request.body.choices)
        self._lengths = [0] * request.body.choices
        self._attempt = 0
        self._started = False

    async def wait(self) -> None:
        """Waits for the first entries, so that an error before them has a status of its own.

        Raises:
            MusterError: The request ended without an answer.
        """
        while not self._first or (self._held and not self._first[-1].end):
            self._first += await anext(self._entries)
        if self._first[-1].end and len(self._first) == 1:
            end_of(self._first[0])
        if self._held:
            end_of(self._first[-1])
            attempt = self._first[-2].attempt if len(self._first) > 1 else 0
            self._first = [one for one in self._first if one.end or one.attempt == attempt]
            self._attempt = attempt

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        try:
            await while_connected(receive, self._send(send))
        except BaseException:
            self._answers.count("disconnected")
            raise
        finally:
            await self._entries.aclose()
            await self._answers.requests.cancel(self._request)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        outcome = "answered"
        try:
            await self._send_entries(send, self._first)
            async for entries in self._entries:
                await self._send_entries(send, entries)
            last = DONE
        except MusterError as error:
            outcome, last = _outcome(error), event({"error": error_object(problem_of(error))})
        except Exception as error:  # noqa: BLE001 - the client learns of every error
            outcome, last = "failed", event({"error": error_object(problem_of(unexpected(error)))})
        await send(body_part(last))
        await send({"type": "http.response.body", "body": b""})
        self._answers.count(outcome)

    async def _send_entries(self, send: Send, entries: list[Entry]) -> None:
        for entry in entries:
            if content := b"".join(self._events(entry)):
                await send(body_part(content))

    def _events(self, entry: Entry) -> Iterator[bytes]:
        if entry.end:
            yield from self._end(end_of(entry))
            return
        self._form = form = _form(self._request, entry.arithmetic)
        if not self._started:
            self._started = True
            yield form.start(len(self._lengths))
        if entry.attempt != self._attempt:
            self._attempt = entry.attempt
            self._sent.start_again()
        for part in read_part(entry.part):
            news = self._sent.news(part)
            if news is None:
                raise AnswerChanged("another worker answered the request again, with other tokens")
            yield from self._chunk(form, news)

    def _chunk(self, form: ReplyFormat, news: AnswerTokens) -> Iterator[bytes]:
        shown = None
        if form.logprobs and news.tokens:
            shown = form.shown_logprobs(news.pieces, news.logprobs, offset=self._lengths[news.choice])
        self._lengths[news.choice] += len(news.text)
        if news.text or shown:
            yield form.chunk([form.chunk_choice(news.choice, news.text, shown, None)])

    def _end(self, record: dict[str, Any]) -> Iterator[bytes]:
        form, samples = self._form, record["samples"]
        for sample in samples:
            more = {"muster": record} if sample is samples[-1] else {}
            finish = FINISH_REASONS[sample["finish"]]
            yield form.chunk([form.chunk_choice(sample["sample"], "", None, finish)], **more)
        if self._with_usage:
            read = sum(len(prompt) for prompt in record["prompts"])
            written = sum(len(sample["token_ids"]) for sample in samples)
            yield form.chunk([], usage=usage_of(read, written))


def _form(request: ClientRequest, arithmetic: str) -> ReplyFormat:
    return answer_form(request.envelope.encode(), kind=request.kind, arithmetic=arithmetic, version=request.digest)


def _outcome(error: BaseException) -> str:
    if isinstance(error, AnswerChanged):
        return "changed"
    if not isinstance(error, MusterError):
        return "disconnected"
    return "refused" if error.status < 500 else "failed"
