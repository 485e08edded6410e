"""Answers of an OpenAI-compatible endpoint, for an evaluation.

A recipe without a chat sends its prompt's text to `/completions`; a recipe with a chat sends messages to
`/chat/completions`, also those of dialogues, with tools. The endpoint tokenizes, so its model may be any.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from typing import Any

import httpx

from protocol.errors import InvalidInput, MusterError, Unavailable
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.retry import Backoff, retry
from rollouts.dialogue.formats import FormatName
from rollouts.models.chat import ChatFormat
from rollouts.plan import PlannedPrompt, Tokenizer
from rollouts.recipe import DialogueChoice, Recipe
from rollouts.sampling.parameters import SamplingParameters
from trainer.endpoint_dialogue import EndpointDialogue, EndpointMessage, read_message
from trainer.evaluator import EvaluatedAnswer

_MOST_BYTES = 16 << 20
_MOST_SHOWN = 300
_BACKOFF = Backoff(attempts=5, first=timedelta(seconds=1), most=timedelta(seconds=20))
_FINISHED = {"stop": True, "length": False}
_ENDED_MESSAGE = _FINISHED | {"tool_calls": True}


class EndpointRefused(MusterError):
    """The endpoint refused a request, or its answer is not that of OpenAI's API."""

    code = "endpoint-refused"
    default_hint = "check the URL, the model's name and the token; the endpoint must have OpenAI's API"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAnswers:
    """Answers of a model behind OpenAI's API; see `trainer.evaluator.AnswerSource`.

    Args:
        url: Base URL, such as `http://127.0.0.1:8000/v1`.
        model: Name of the model.
        token: Bearer token; None if the endpoint needs none.
        recipe: The recipe, whose chat format the prompts have.
        tokenizer: Counts the tokens of answers if the endpoint does not.
        concurrency: Maximum number of requests at a time.
        timeout: Time limit of one answer.
        clock: Clock of retries.
        transport: HTTP transport; None for the network.

    Raises:
        InvalidInput: The URL is not valid, or would send the token in plain text to another machine. Or the recipe
            rewards lengths in tokens, which the text of an answer does not determine, or has dialogues without chat
            messages.
    """

    url: str
    model: str
    token: str | None
    recipe: Recipe
    tokenizer: Tokenizer
    concurrency: int = 16
    timeout: timedelta = timedelta(minutes=10)
    clock: Clock = field(default_factory=SystemClock)
    transport: httpx.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in {"http", "https"} or not url.host or url.userinfo or url.query:
            raise InvalidInput(
                "the endpoint's URL is not valid", hint="give a URL such as https://host/v1, without user and query"
            )
        if url.scheme == "http" and self.token is not None and not _is_loopback(url.host):
            raise InvalidInput(
                f"the token would travel to {url.host} unencrypted", hint="give an https URL, or leave the token out"
            )
        if self.recipe.length is not None:
            raise InvalidInput(
                "the recipe rewards the length of answers in tokens, but an endpoint returns text",
                hint="evaluate the model's folder without --endpoint",
            )

        if self.recipe.dialogue is not None and self.recipe.dialogue.format is FormatName.PLAIN:
            raise InvalidInput(
                "the recipe's dialogues have the format plain, which has no messages that an endpoint could read",
                hint="evaluate the model's folder without --endpoint, or use the format template or chatml",
            )

    def answers(
        self, planned: Sequence[PlannedPrompt], parameters: SamplingParameters, *, each: int
    ) -> Iterator[EvaluatedAnswer]:
        """Requests `each` answers to each prompt: see `AnswerSource.answers`.

        Raises:
            EndpointRefused: The endpoint refused a request, or answered with something else.
            Unavailable: It could not be reached, or is too busy, after several attempts.
        """
        with (
            ThreadPoolExecutor(1) as thread,  # because the caller's thread may run an event loop
            ThreadPoolExecutor(1) as replies,
        ):
            yield from thread.submit(asyncio.run, self._answers(planned, parameters, each, replies)).result()

    async def _answers(
        self, planned: Sequence[PlannedPrompt], parameters: SamplingParameters, each: int, replies: Executor
    ) -> list[EvaluatedAnswer]:
        turns = asyncio.Semaphore(self.concurrency)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        limits = httpx.Limits(max_connections=self.concurrency)
        timeout = self.timeout.total_seconds()
        async with httpx.AsyncClient(
            headers=headers, limits=limits, timeout=timeout, transport=self.transport
        ) as client:

            async def ask(body: dict[str, object]) -> dict[str, Any]:
                async with turns:
                    return await retry(lambda: self._ask(client, body), clock=self.clock, backoff=_BACKOFF)

            async def one(place: int, number: int) -> EvaluatedAnswer:
                body = self._body(planned[place], parameters, number)
                if self.recipe.dialogue is None:
                    return self._answer(place, await ask(body))
                return await self._play(
                    self.recipe.dialogue, planned[place], place=place, body=body, ask=ask, replies=replies
                )

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(one(place, number)) for place in range(len(planned)) for number in range(each)
                    ]
            except* MusterError as errors:
                raise _first(errors) from None
        return [task.result() for task in tasks]

    async def _play(
        self,
        choice: DialogueChoice,
        planned: PlannedPrompt,
        *,
        place: int,
        body: dict[str, object],
        ask: Callable[[dict[str, object]], Awaitable[dict[str, Any]]],
        replies: Executor,
    ) -> EvaluatedAnswer:
        """Plays a dialogue; the environment's code runs in `replies`."""
        run = partial(asyncio.get_running_loop().run_in_executor, replies)

        def begin() -> EndpointDialogue:
            return EndpointDialogue(
                planned.planner.begin(planned.group.prompt),
                choice,
                new_tokens=self.recipe.sampling.max_new_tokens,
                system=self._chat.system,
                tokenizer=self.tokenizer,
            )

        dialogue: EndpointDialogue = await run(begin)
        while not dialogue.over:
            await run(dialogue.take, self._message(await ask(body | dialogue.request())))
        return EvaluatedAnswer(
            place=place,
            text=dialogue.text,
            tokens=dialogue.tokens - dialogue.finished,
            finished=dialogue.finished,
            reward=await run(dialogue.reward),
            turns=dialogue.turns,
        )

    def _message(self, value: dict[str, Any]) -> EndpointMessage:
        try:
            [choice] = value["choices"]
            end = choice["finish_reason"]
            if end not in _ENDED_MESSAGE:
                raise EndpointRefused(f"the endpoint's message ended with {str(end)[:40]!r}, not with stop or length")
            finished = _ENDED_MESSAGE[end]
            tokens = _counted(value, least=finished)
            return read_message(choice["message"], tokens=tokens, finished=finished, tokenizer=self.tokenizer)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EndpointRefused("the endpoint's answer has no message") from None

    @property
    def _is_chat(self) -> bool:
        return self.recipe.chat is not False or self.recipe.dialogue is not None

    @property
    def _chat(self) -> ChatFormat:
        return self.recipe.chat if isinstance(self.recipe.chat, ChatFormat) else ChatFormat()

    def _body(self, planned: PlannedPrompt, parameters: SamplingParameters, number: int) -> dict[str, object]:
        seed = hashlib.sha256(planned.seed + number.to_bytes(4, "big")).digest()
        greedy = parameters.top_k == 1
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": parameters.max_new_tokens,
            "temperature": 0 if greedy else parameters.temperature,
            "seed": int.from_bytes(seed[:4], "big") >> 1,
        }
        if parameters.top_p < 1:
            body["top_p"] = parameters.top_p
        if parameters.top_k and not greedy:
            body["top_k"] = parameters.top_k  # not OpenAI's, but vLLM's and Muster's; others refuse it
        text = planned.group.prompt.text
        if not self._is_chat:
            return body | {"prompt": text}
        system = [{"role": "system", "content": self._chat.system}] if self._chat.system else []
        if self._chat.template:
            body["chat_template_kwargs"] = self._chat.template
        return body | {"messages": [*system, {"role": "user", "content": text}]}

    async def _ask(self, client: httpx.AsyncClient, body: dict[str, object]) -> dict[str, Any]:
        path = "/chat/completions" if self._is_chat else "/completions"
        try:
            async with client.stream("POST", self.url.rstrip("/") + path, json=body) as answer:
                content = bytearray()
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _MOST_BYTES:
                        raise EndpointRefused(f"the endpoint's answer has more than {_MOST_BYTES} bytes")
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the endpoint {self.url} does not answer: {type(error).__name__}", hint="check that it runs"
            ) from error
        if answer.status_code != httpx.codes.OK:
            _refuse(answer.status_code, bytes(content), answer.headers.get("Retry-After"))
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EndpointRefused("the endpoint's answer is not a JSON object")
        return value

    def _answer(self, place: int, value: dict[str, Any]) -> EvaluatedAnswer:
        try:
            [choice] = value["choices"]
            text = choice["message"]["content"] or "" if self._is_chat else choice["text"]
            finish = choice["finish_reason"]
            if not isinstance(text, str) or finish not in _FINISHED:
                raise EndpointRefused(f"the endpoint's answer ended with {str(finish)[:40]!r}, not with stop or length")
        except (KeyError, TypeError, ValueError):
            raise EndpointRefused("the endpoint's answer has no text") from None
        finished = _FINISHED[finish]
        counted = _counted(value, least=finished)
        if counted is not None:
            return EvaluatedAnswer(place=place, text=text, tokens=counted - finished, finished=finished)
        return EvaluatedAnswer(place=place, text=text, tokens=len(self.tokenizer.encode(text)), finished=finished)


def _counted(value: dict[str, Any], *, least: int) -> int | None:
    """Returns the number of tokens that the endpoint says it has generated; None if it does not say."""
    usage = value.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return counted if isinstance(counted, int) and counted >= least else None


def _refuse(status: int, content: bytes, after: str | None) -> None:
    """Raises the error of a refused request, with the endpoint's message cut to one short line."""
    try:
        error = json.loads(content)["error"]
        said = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        said = "without a message"
    what = f"the endpoint answered {status}: {' '.join(said.split())[:_MOST_SHOWN]}"
    if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
        busy = Unavailable(what, hint="lower --concurrency, or try again later")
        if after is not None and after.isdigit() and len(after) < 6:
            busy.retry_after = timedelta(seconds=int(after))
        raise busy
    raise EndpointRefused(what)


def _first(errors: BaseExceptionGroup[MusterError]) -> MusterError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, MusterError):
        raise TypeError("the group has another error")
    return error


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
