"""Answers to a gateway's clients: from a request's body through the engine to numbered parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Address, Digest
from protocol.openai.bodies import parse_body
from protocol.openai.errors import InvalidRequest
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.wire.answers import AnswerRecord
from protocol.wire.served import RequestKind
from protocol.wire.serving import (
    MOST_TOKENS_PER_PART,
    AnswerFailure,
    AnswerPart,
    AnswerTokens,
    AssignedRequest,
)
from rollouts.engines.interface import Completion, DrawnToken, SampleRequest
from rollouts.engines.request_encoding import encode, room, sample_requests
from rollouts.environments import load_environment
from rollouts.errors import EngineFailed
from rollouts.models.tokenizer import FolderTokenizer, TextStream
from rollouts.precision import Arithmetic
from rollouts.recipe import Recipe
from rollouts.serving.backend import Backend, Work
from rollouts.serving.generation import Generation, News
from rollouts.serving.record import record_of
from rollouts.serving.version import ServedVersion
from rollouts.task.arithmetic import HasArithmetics, paid_arithmetic

_LONGEST_DETAIL = 4000
_PARAMS = {RequestKind.COMPLETION: "prompt", RequestKind.CHAT: "messages", RequestKind.GENERATE: "token_ids"}
_log = get_logger(__name__)


class NotAServingRun(InvalidInput):
    """The version's recipe is not that of a serving run."""

    code = "not-a-serving-run"


class ServingVersion:
    """A version that the engine has loaded to answer a gateway's clients.

    Args:
        version: The version's digest.
        recipe: Its recipe.
        engine: The engine.
        backend: Gives requests to the engine.
        on_engine_failure: Called with the engine's error if an answer fails because of it.

    Raises:
        NotAServingRun: The recipe's environment is not `served`.
        UnknownEnvironment: The recipe's environment has another version here.
        ArithmeticNotTaken: The recipe accepts none of the engine's arithmetics.
    """

    def __init__(
        self,
        version: Digest,
        recipe: Recipe,
        *,
        engine: HasArithmetics,
        backend: Backend,
        on_engine_failure: Callable[[EngineFailed], None],
    ) -> None:
        self.version = version
        self.recipe = recipe
        self.gateway = gateway_of(recipe)
        choice = recipe.environment
        self.environment = load_environment(choice.name, version=choice.version, options=choice.options)
        self.backend = backend
        self.on_engine_failure = on_engine_failure
        self._engine = engine
        self.choose_arithmetic(())

    def choose_arithmetic(self, unverifiable: Collection[str]) -> None:
        """Chooses the arithmetic of further slots: see `SlotGenerator.choose_arithmetic`."""
        self.arithmetic = paid_arithmetic(self.recipe.taken, self._engine, unverifiable=unverifiable)

    @property
    def tokenizer(self) -> FolderTokenizer:
        """The version's tokenizer."""
        return self.backend.version.tokenizer

    @property
    def room(self) -> int:
        """Number of answers that the engine's batch has room for."""
        return max(0, self.backend.engine.max_batch - self.backend.answers)


def gateway_of(recipe: Recipe) -> Address:
    """Returns the address of the key of a serving run's gateway.

    Raises:
        NotAServingRun: The recipe is not that of a serving run.
    """
    if recipe.gateway is None:
        raise NotAServingRun(
            f"this version's recipe has the environment {recipe.environment.name}, whose prompts come from no gateway",
            hint="the pool owner posts the task without --serve, or publishes a version with the environment served",
        )
    return recipe.gateway


@dataclass(slots=True)
class _Choice:
    """A choice of an answer in progress: its whole text, and the content that no part has yet."""

    stream: TextStream
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    new_text: str = ""


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """An answer with all that its rows in the rollout file need.

    Args:
        requests: The requests to the engine, by choice.
        completions: The completions, by choice.
        texts: Text of each choice as the client got it; empty for requests of tokens.
    """

    requests: tuple[SampleRequest, ...]
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]


class AnswerInProgress:
    """The answer to one request.

    Args:
        assigned: The request.
        version: The version that answers.
        arithmetic: Arithmetic of the session.
        wake: Called when `take_part` has something new.
    """

    def __init__(
        self,
        assigned: AssignedRequest,
        *,
        version: ServingVersion,
        arithmetic: Arithmetic,
        wake: Callable[[], None],
    ) -> None:
        self.assigned = assigned
        self.finished: FinishedAnswer | None = None
        self._version = version
        self._arithmetic = arithmetic
        self._wake = wake
        self._choices: list[_Choice] = []
        self._number = 0
        self._record: AnswerRecord | None = None
        self._failure: AnswerFailure | None = None

    @property
    def ended(self) -> bool:
        """Whether the next part is the last one, or has been taken."""
        return self._record is not None or self._failure is not None

    async def run(self) -> None:
        """Lets the engine answer; errors become the answer's failure."""
        try:
            generation = await self._start()
            with generation:
                completions: list[Completion] = []
                while news := await generation.news():
                    self._add(news)
                    completions += [one for one in news if isinstance(one, Completion)]
            self._end(generation, sorted(completions, key=lambda one: one.sample))
        except InvalidRequest as error:
            param = next(iter(error.fields or {}), "")
            self._fail(error, param=param or _PARAMS[self.assigned.kind])
        except MusterError as error:
            if isinstance(error, EngineFailed):
                self._version.on_engine_failure(error)
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - one request must not end the others; the log has the cause
            _log.error("answer-failed", request=self.assigned.id, exc_info=error)
            self._failure = AnswerFailure(code="internal-error", detail=f"the task failed: {type(error).__name__}")
        self._wake()

    def take_part(self) -> AnswerPart | None:
        """Returns the next part, with all that is new; None if nothing is new."""
        tokens: list[AnswerTokens] = []
        for index, choice in enumerate(self._choices):
            while choice.tokens or choice.new_text:
                tokens.append(self._take_tokens(index, choice))
        if not tokens and not self.ended:
            return None
        part = AnswerPart(
            id=self.assigned.id,
            attempt=self.assigned.attempt,
            number=self._number,
            tokens=tuple(tokens) if self._failure is None else (),
            record=self._record,
            failure=self._failure,
        )
        self._number += 1
        return part

    def _take_tokens(self, index: int, choice: _Choice) -> AnswerTokens:
        taken, logprobs, text = choice.tokens[:MOST_TOKENS_PER_PART], choice.logprobs[:MOST_TOKENS_PER_PART], ""
        del choice.tokens[:MOST_TOKENS_PER_PART], choice.logprobs[:MOST_TOKENS_PER_PART]
        if not choice.tokens:  # the text comes with its last token
            text, choice.new_text = choice.new_text, ""
        pieces: tuple[str, ...] = ()
        if self.assigned.with_pieces:
            pieces = tuple(self._version.tokenizer.token_text(token) for token in taken)
        return AnswerTokens(choice=index, tokens=tuple(taken), logprobs=tuple(logprobs), text=text, pieces=pieces)

    async def _start(self) -> Generation:
        assigned = self.assigned
        body = parse_body(assigned.kind, assigned.body.encode())
        if body.choices != assigned.choices:
            raise InvalidInput(f"the request has {body.choices} choices, but the gateway says {assigned.choices}")
        recipe = self._version.recipe
        most = recipe.sampling.max_new_tokens
        if body.new_tokens is not None and body.new_tokens > most:
            raise InvalidRequest("max_tokens", f"{body.new_tokens} new tokens are asked for; the run's limit is {most}")
        seed = bytes.fromhex(assigned.seed[2:])

        async def make(served: ServedVersion) -> Work:
            body.sampling.check_stop_tokens(served.model.end_tokens)
            prompts = await run_in_thread(encode, body, served)
            new_tokens = min(room(prompts, served), most) if body.new_tokens is None else body.new_tokens
            requests = sample_requests(
                prompts,
                each=body.sampling.n or 1,
                seed=seed,
                version=served,
                new_tokens=new_tokens,
                param=_PARAMS[assigned.kind],
            )
            return Work(requests=requests, parameters=body.sampling.parameters(new_tokens), streamed=True)

        generation = await self._version.backend.generate(assigned.choices, make)
        self._choices = [_Choice(self._version.tokenizer.text_stream()) for _ in generation.requests]
        return generation

    def _add(self, news: Sequence[News]) -> None:
        has_text = self.assigned.kind is not RequestKind.GENERATE
        for one in news:
            choice = self._choices[one.sample]
            if isinstance(one, DrawnToken):
                choice.tokens.append(one.token)
                choice.logprobs.append(float(np.float32(one.logprob)))
            if has_text:
                text = choice.stream.add(one.token) if isinstance(one, DrawnToken) else choice.stream.end()
                choice.text += text
                choice.new_text += text
        self._wake()

    def _end(self, generation: Generation, completions: Sequence[Completion]) -> None:
        self.finished = FinishedAnswer(
            generation.requests, tuple(completions), tuple(choice.text for choice in self._choices)
        )
        self._record = record_of(
            completions,
            requests=generation.requests,
            parameters=generation.parameters,
            arithmetic=self._arithmetic,
            with_proofs=True,
        )

    def _fail(self, error: MusterError, *, param: str = "") -> None:
        self._failure = AnswerFailure(
            code=error.code, detail=_line(error.detail), param=param[:200], hint=_line(error.hint or "")
        )


def _line(text: str) -> str:
    return text.replace("\0", "")[:_LONGEST_DETAIL]
