"""Interface of engines: they load weights and generate seeded answers with proofs.

Two engines with the same version, requests and parameters draw the same tokens. The exception are near-ties, where the
engines may draw different tokens because their logits differ in the last bits. This module does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.engines.batch_usage import BatchUsage
from rollouts.engines.errors import PromptTooLong
from rollouts.models.facts import ModelFacts
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters

SEED_BYTES = 32
MOST_SAMPLES = 1 << 32
"""Sample numbers are smaller than this bound, because a sample's number takes four bytes in its noise key."""


class FinishReason(StrEnum):
    """Reason why an answer ended."""

    EOS = "eos"
    """The last token is one of the model's end tokens."""
    LENGTH = "length"
    """The answer has `max_new_tokens` tokens, and the last one is not an end token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EarlierTurns:
    """Facts about the earlier turns of a dialogue, which an engine needs to continue it.

    The intervals of proofs run across turns. So the states of the last, incomplete interval are proved together with
    the next turn's states.

    Args:
        drawn: Number of tokens that the sample drew in earlier turns; 0 in the first turn. The noise of the request's
            first token has this position.
        states: uint16 [drawn % 32, hidden], bit patterns in bfloat16 of the states that produced the last of them.
    """

    drawn: int
    states: NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """Request for one answer.

    Args:
        sample: The sample's number in the slot (group · samples per group + index in the group). With the seed, this
            number keys the noise of every token; the number must be unique in a batch.
        prompt_tokens: At least one token. Requests of one group share the tuple, so the prompt is computed once.
        seed: The slot's 32 bytes, from `rollouts.seeds.slot_seed`.
        new_tokens: Limit of the answer's tokens, at most that of the job's parameters; None for the latter.
        earlier: Earlier turns, if the answer is a turn of a dialogue; `prompt_tokens` are then all tokens before it.

    Raises:
        InvalidInput: The prompt is empty, or the number or the seed is out of range.
    """

    sample: int
    prompt_tokens: tuple[int, ...]
    seed: bytes
    new_tokens: int | None = None
    earlier: EarlierTurns | None = None

    def most_new_tokens(self, parameters: SamplingParameters) -> int:
        """Returns the limit of the answer's tokens."""
        return parameters.max_new_tokens if self.new_tokens is None else self.new_tokens

    def __post_init__(self) -> None:
        if not 0 <= self.sample < MOST_SAMPLES:
            raise InvalidInput(f"sample {self.sample} is outside 0 to {MOST_SAMPLES - 1}")
        if len(self.seed) != SEED_BYTES:
            raise InvalidInput(f"a seed can't have {len(self.seed)} bytes", hint=f"give {SEED_BYTES} bytes")
        if not self.prompt_tokens:
            raise InvalidInput(
                f"the prompt of sample {self.sample} has no tokens",
                hint="begin a prompt with the tokenizer's begin token if its text can be empty",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One generated answer.

    Args:
        sample: The request's sample number.
        tokens: At least one token; an end token can only be the last one.
        logprobs: float32 [len(tokens)], log-softmax(logits / temperature) of each token over the whole vocabulary,
            before top-k, top-p and noise.
        finish: Reason why the answer ended.
        proofs: TOPLOC proofs of the states that produced the tokens, 258·ceil(len(tokens)/32) bytes; empty if they
            were not requested. In a dialogue they begin with the interval of the first new token, and include the
            states of `SampleRequest.earlier`.
        version: The version digest of the policy; the same for the whole answer.
        states_left: uint16 [(drawn before + len(tokens)) % 32, hidden], for `EarlierTurns.states` of the next turn.
            None unless the request has `earlier` and proofs were requested.
    """

    sample: int
    tokens: tuple[int, ...]
    logprobs: NDArray[np.float32]
    finish: FinishReason
    proofs: bytes
    version: Digest
    states_left: NDArray[np.uint16] | None = None


class DrawnToken(NamedTuple):
    """A token of an answer in progress.

    Args:
        sample: The request's sample number.
        position: The token's position in the answer, from 0; in a dialogue, its position in the turn.
        token: The token.
        logprob: Its log-probability: see `Completion.logprobs`.
    """

    sample: int
    position: int
    token: int
    logprob: float


def _go_on() -> bool:
    return False


def _ignore(_: Completion) -> None:
    return None


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Requests that a session answers with the same parameters.

    Args:
        requests: The requests, with distinct sample numbers. An answer depends on its own request, the version and the
            parameters. Other answers of the batch affect only the last bits of its arithmetic, which changes its tokens
            only at near-ties.
        parameters: Sampling parameters of all requests.
        should_stop: Polled at least once a second, by the computing thread; the job ends unfinished when it returns
            true.
        on_answer: Called by the computing thread with each completion, in any order.
        on_token: Called by the computing thread for each drawn token, in order and before `on_answer`; None if the
            caller needs whole answers only. An answer that is computed again, because memory ran out, is reported again
            from position 0.
    """

    requests: tuple[SampleRequest, ...]
    parameters: SamplingParameters
    should_stop: Callable[[], bool] = _go_on
    on_answer: Callable[[Completion], None] = _ignore
    on_token: Callable[[DrawnToken], None] | None = None
    done: Future[None] = field(default_factory=Future, init=False)
    """Ends when all requests are answered. Its exception is `GenerationStopped` if `should_stop` returned true or the
    session was closed, an error that a function of this job raised, or the engine's error, which all jobs of the
    session share. It can't be cancelled."""
    failure: Exception | None = field(default=None, init=False)
    """Error that ends this job only: a function of the job raised it, or an answer does not fit into memory."""


class Session(Protocol):
    """Answers of one version that share a batch.

    Jobs may be added while others are computed, so that the batch stays full. `add` and `unanswered` may be used by any
    thread, the other methods by one thread.
    """

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""

    def add(self, job: Job) -> None:
        """Adds requests, which join the batch as soon as rows are free.

        Raises:
            InvalidInput: A sample occurs twice in the job, or a token is outside the vocabulary.
            PromptTooLong: A prompt and `max_new_tokens` together exceed the model's context.
            Conflict: The session is closed.
        """

    def completions(self) -> Iterator[Completion]:
        """Computes until no request is left; yields the completions of all jobs, after `on_answer` was called.

        Raises:
            OutOfMemory: A single sequence does not fit; smaller batches were tried.
            EngineFailed: The engine crashed, or a logit is NaN or infinite.
        """

    def close(self) -> None:
        """Stops all jobs; the engine can then load or open again. May be called repeatedly."""


class Engine(Protocol):
    """Holds one version of a model and generates answers from it. Not thread-safe."""

    @property
    def name(self) -> EngineName:
        """The engine's name."""

    @property
    def dtype(self) -> Dtype:
        """The data type of the computation."""

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """The engine's arithmetics: its numerics class, if it has one, then the pair of engine and data type."""

    @property
    def version(self) -> Digest | None:
        """The digest of the loaded version; None before the first load and after a failed load."""

    @property
    def model(self) -> ModelFacts | None:
        """Facts of the loaded model; None before the first load and after a failed load."""

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads a version of the policy from a Hugging Face folder.

        If the loaded version has tensors of the same shapes, the new weights overwrite the old ones in place.

        Args:
            folder: Folder with `config.json`, safetensors and a tokenizer.
            version: The folder's digest, already checked by the caller.

        Raises:
            EngineBusy: A session is open, or an earlier `generate` is not exhausted; the loaded version is unchanged.
            BadVersionFolder: The folder is unusable (see `rollouts.models.facts`); the engine is now empty.
            OutOfMemory: The weights do not fit; the engine is now empty.
        """

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        with_proofs: bool = True,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Yields one completion per request as the answers finish: a session with one job.

        Args:
            requests: The requests of the job.
            parameters: Sampling parameters of the job.
            with_proofs: Whether to build proofs.
            should_stop: Polled at least once a second; generation stops when it returns true.

        Raises:
            InvalidInput: A sample occurs twice, or a token is outside the vocabulary.
            PromptTooLong: A prompt and `max_new_tokens` together exceed the model's context.
            NothingLoaded: No weights are loaded.
            EngineBusy: A session is open.
            GenerationStopped: `should_stop` returned true.
            OutOfMemory: A single sequence does not fit; smaller batches were tried.
            EngineFailed: The engine crashed, or a logit is NaN or infinite.
        """

    def close(self) -> None:
        """Frees all resources; the engine is unusable afterwards. May be called repeatedly."""


class SessionEngine(Engine, Protocol):
    """An engine whose batch several threads can share."""

    @property
    def max_batch(self) -> int:
        """Maximum answers in progress; smaller than at first after memory ran out."""

    @property
    def usage(self) -> BatchUsage:
        """Use of the batch since the engine was opened."""

    def open(self, *, with_proofs: bool = True) -> Session:
        """Opens a session on the loaded version; the engine has at most one.

        Args:
            with_proofs: Whether to build proofs.

        Raises:
            NothingLoaded: No weights are loaded.
            EngineBusy: A session is open.
        """


def check_requests(
    requests: Sequence[SampleRequest], parameters: SamplingParameters, *, vocabulary: int, context: int
) -> None:
    """Rejects requests that no engine can answer, before any work is done.

    Raises:
        InvalidInput: A sample occurs twice, or a token is outside the vocabulary.
        PromptTooLong: A prompt and `max_new_tokens` together exceed the model's context.
    """
    seen: set[int] = set()
    for request in requests:
        if request.sample in seen:
            raise InvalidInput(f"sample {request.sample} occurs twice in the batch")
        seen.add(request.sample)
    for prompt, new_tokens in {(request.prompt_tokens, request.most_new_tokens(parameters)) for request in requests}:
        if not 1 <= new_tokens <= parameters.max_new_tokens:
            raise InvalidInput(
                f"a request can't have a limit of {new_tokens} of {parameters.max_new_tokens} new tokens"
            )
        if len(prompt) + new_tokens > context:
            raise PromptTooLong(
                f"a prompt of {len(prompt)} tokens and {new_tokens} new ones exceed the model's context of {context}"
            )
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise InvalidInput(
                f"a prompt has a token outside the model's vocabulary of {vocabulary}",
                hint="encode prompts with the tokenizer of the same folder",
            )
