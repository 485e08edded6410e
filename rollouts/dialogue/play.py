"""Plays dialogues: an engine draws the model's turns, and the environment replies on another thread.

    for played in play(engine, dialogues, parameters, replies=executor):
        played.drawn, played.turns, played.reward

Each turn is a request of its own, whose prompt is all tokens before it. On a shared engine, a dialogue's next turn
joins the batch as soon as the environment has replied. Other engines draw in rounds: the next turns of all dialogues,
then their replies. So equal dialogues are computed in equal batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rollouts.dialogue.conversation import Conversation
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, EarlierTurns, Job, SampleRequest
from rollouts.environments.rewards import Reward
from rollouts.sampling.parameters import SamplingParameters
from rollouts.toploc import TOPLOC
from rollouts.turns import Turn

_POLL = timedelta(seconds=1)
"""Interval at which `should_stop` is polled while a reply is awaited."""


class DrawsAnswers(Protocol):
    """The part of an engine that draws answers."""

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Yields one completion per request: see `Engine.generate`."""


@runtime_checkable
class TakesJobs(Protocol):
    """An engine that computes on a thread of its own, and takes further requests at any time."""

    def add(self, job: Job) -> None:
        """Adds requests: see `Session.add`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedDialogue:
    """A dialogue that is over.

    Args:
        drawn: The drawn tokens of all turns with their log-probabilities and proofs; `finish` is that of the last turn.
        turns: The turns.
        tokens: All tokens after the prompt.
        reward: The reward.
    """

    drawn: Completion
    turns: tuple[Turn, ...]
    tokens: tuple[int, ...]
    reward: Reward

    @property
    def sample(self) -> int:
        """Number of the sample."""
        return self.drawn.sample


class Dialogue:
    """One sample's dialogue while it is played.

    Args:
        sample: The sample's number.
        seed: Seed of the noise.
        begin: Begins the conversation.
        reward: Returns the reward of a conversation that is over.
        environment_use: Entered while the environment's code runs.
    """

    def __init__(
        self,
        sample: int,
        *,
        seed: bytes,
        begin: Callable[[], Conversation],
        reward: Callable[[Conversation], Reward],
        environment_use: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.sample = sample
        self.played: PlayedDialogue | None = None
        """The result; None until the dialogue is over."""
        self._seed = seed
        self._begin = begin
        self._reward = reward
        self._environment_use = environment_use
        self._conversation: Conversation | None = None
        self._logprobs: list[NDArray[np.float32]] = []
        self._proofs: list[bytes] = []
        self._states = np.zeros((0, 0), np.uint16)

    def request(self) -> SampleRequest:
        """Returns the request for the next turn.

        Raises:
            EnvironmentFault: The environment breaks its contract.
        """
        conversation = self._begun()
        prompt = conversation.prompt_tokens
        return SampleRequest(
            sample=self.sample,
            prompt_tokens=(*prompt, *conversation.tokens) if conversation.tokens else prompt,
            seed=self._seed,
            new_tokens=conversation.room,
            earlier=EarlierTurns(drawn=len(conversation.drawn), states=self._states),
        )

    def take(self, turn: Completion) -> None:
        """Takes the turn that was requested, and lets the environment reply.

        Raises:
            EnvironmentFault: The environment breaks its contract.
            SandboxUnavailable: This machine has no sandbox for the environment's code.
        """
        conversation = self._begun()
        with self._environment_use():
            conversation.add(turn.tokens)
            reward = self._reward(conversation) if conversation.over else None
        self._logprobs.append(turn.logprobs)
        if reward is None:  # the turn's last proof is of an incomplete interval, which the next turn continues
            whole = (len(self._states) + len(turn.tokens)) // TOPLOC.interval
            self._proofs.append(turn.proofs[: whole * TOPLOC.proof_bytes])
            if turn.states_left is not None:
                self._states = turn.states_left
            return
        self._proofs.append(turn.proofs)
        drawn = Completion(
            sample=self.sample,
            tokens=tuple(conversation.drawn),
            logprobs=np.concatenate(self._logprobs),
            finish=conversation.finish,
            proofs=b"".join(self._proofs),
            version=turn.version,
        )
        turns, tokens = tuple(conversation.turns), tuple(conversation.tokens)
        self.played = PlayedDialogue(drawn=drawn, turns=turns, tokens=tokens, reward=reward)

    def _begun(self) -> Conversation:
        if self._conversation is None:
            with self._environment_use():
                self._conversation = self._begin()
        return self._conversation


def play(
    engine: DrawsAnswers,
    dialogues: Sequence[Dialogue],
    parameters: SamplingParameters,
    *,
    replies: Executor,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[PlayedDialogue]:
    """Plays dialogues; yields them as they end. A shared engine gets the first turns before the function returns.

    Args:
        engine: The engine, which has loaded the version.
        dialogues: The dialogues, with distinct sample numbers.
        parameters: Sampling parameters.
        replies: Executor that runs the environment's code.
        should_stop: Polled at least once a second; dialogues stop when it returns true.

    Raises:
        GenerationStopped: `should_stop` returned true.
        PromptTooLong: A prompt exceeds the model's context.
        EngineFailed: The engine failed; see also `Engine.generate`.
        EnvironmentFault: The environment breaks its contract.
        SandboxUnavailable: This machine has no sandbox for the environment's code.
    """
    if isinstance(engine, TakesJobs):
        joining = _Joining(engine, dialogues, parameters, replies, should_stop)
        joining.begin()
        return joining.played()
    draw = partial(engine.generate, parameters=parameters, should_stop=should_stop)
    return play_in_rounds(draw, dialogues, replies=replies, should_stop=should_stop)


def play_in_rounds(
    draw: Callable[[Sequence[SampleRequest]], Iterator[Completion]],
    dialogues: Sequence[Dialogue],
    *,
    replies: Executor,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[PlayedDialogue]:
    """Plays dialogues in rounds: see `play`.

    Args:
        draw: Yields one completion per request, until `should_stop` returns true.
        dialogues: The dialogues, with distinct sample numbers.
        replies: Executor that runs the environment's code.
        should_stop: Polled between replies; dialogues stop when it returns true.
    """
    going = {one.sample: one for one in dialogues}
    while going:
        requests = [one.request() for one in going.values()]
        taken: list[Future[None]] = []
        try:
            for turn in draw(requests):
                taken.append(replies.submit(going[turn.sample].take, turn))  # noqa: PERF401 - cancelled after an error
            for future in taken:
                future.result()
                if should_stop is not None and should_stop():
                    raise GenerationStopped(f"stopped with {len(going)} dialogues unfinished")
        finally:
            for future in taken:
                future.cancel()
        for one in [*going.values()]:
            if one.played is not None:
                del going[one.sample]
                yield one.played


class _Joining:
    """Plays dialogues on an engine whose batch they join turn by turn."""

    def __init__(
        self,
        engine: TakesJobs,
        dialogues: Sequence[Dialogue],
        parameters: SamplingParameters,
        replies: Executor,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._engine = engine
        self._dialogues = {one.sample: one for one in dialogues}
        self._parameters = parameters
        self._replies = replies
        self._should_stop = should_stop
        self._given_up = threading.Event()
        self._events: SimpleQueue[PlayedDialogue | BaseException] = SimpleQueue()

    def begin(self) -> None:
        """Requests the first turns."""
        self._ask([*self._dialogues.values()])

    def played(self) -> Iterator[PlayedDialogue]:
        """Yields the dialogues as they end; the first error ends all."""
        try:
            for _ in self._dialogues:
                yield self._next()
        finally:
            self._given_up.set()

    def _next(self) -> PlayedDialogue:
        """Waits for the next dialogue, also while a reply takes long.

        Raises:
            GenerationStopped: `should_stop` returned true.
        """
        while True:
            try:
                event = self._events.get(timeout=_POLL.total_seconds())
            except Empty:
                if self._stopped():
                    raise GenerationStopped("stopped while a dialogue was going on") from None
                continue
            if isinstance(event, BaseException):
                raise event
            return event

    def _ask(self, dialogues: Sequence[Dialogue]) -> None:
        requests = tuple(one.request() for one in dialogues)
        job = Job(requests=requests, parameters=self._parameters, should_stop=self._stopped, on_answer=self._let_reply)
        job.done.add_done_callback(self._report_failure)
        self._engine.add(job)

    def _let_reply(self, turn: Completion) -> None:
        """Called on the engine's thread, which must not wait for the environment."""
        self._replies.submit(self._take, turn).add_done_callback(self._report_failure)

    def _take(self, turn: Completion) -> None:
        if self._stopped():
            raise GenerationStopped("stopped before the reply to a turn")
        dialogue = self._dialogues[turn.sample]
        dialogue.take(turn)
        if dialogue.played is None:
            self._ask([dialogue])
        else:
            self._events.put(dialogue.played)

    def _stopped(self) -> bool:
        return self._given_up.is_set() or (self._should_stop is not None and self._should_stop())

    def _report_failure(self, done: Future[None]) -> None:
        if done.cancelled():
            self._events.put(GenerationStopped("the replies to turns were cancelled"))
        elif (error := done.exception()) is not None:
            self._events.put(error)
