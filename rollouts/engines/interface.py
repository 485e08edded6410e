"""What an engine is: weights in, seeded answers with their proofs out.

Two engines that are given the same version, requests and parameters draw the same tokens, but for near-ties between
tokens where their arithmetic differs in the last bits. Nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.engines.errors import PromptTooLong
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters

SEED_BYTES = 32
MOST_SAMPLES = 1 << 32
"""A sample's number is four bytes of what keys its noise."""


class FinishReason(StrEnum):
    """Why an answer ends."""

    EOS = "eos"
    """Its last token is one of the model's end tokens."""
    LENGTH = "length"
    """It has `max_new_tokens` tokens, and the last is no end token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One answer that is wanted.

    Args:
        sample: Its number in the slot (group · samples per group + place in the group); with the seed, it keys the
            noise of every token. A batch never has one twice.
        prompt_tokens: At least one. Requests of one group share the tuple, and the prompt is computed once.
        seed: The slot's 32 bytes, from `rollouts.seeds.slot_seed`.

    Raises:
        InvalidInput: The prompt is empty, or the number or the seed is out of its bounds.
    """

    sample: int
    prompt_tokens: tuple[int, ...]
    seed: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.sample < MOST_SAMPLES:
            raise InvalidInput(f"sample {self.sample} is outside 0 to {MOST_SAMPLES - 1}")
        if len(self.seed) != SEED_BYTES:
            raise InvalidInput(f"a seed of {len(self.seed)} bytes", hint=f"it has {SEED_BYTES}")
        if not self.prompt_tokens:
            raise InvalidInput(
                f"the prompt of sample {self.sample} has no tokens",
                hint="begin a prompt with the tokenizer's begin token if its text can be empty",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer.

    Args:
        sample: The request's.
        tokens: At least one; an end token is last or nowhere.
        logprobs: float32 [len(tokens)], log-softmax(logits / temperature) of each token over the whole vocabulary,
            before any token is left out and before the noise.
        finish: Why it ends.
        proofs: TOPLOC proofs of the states that produced the tokens, 258·ceil(len(tokens)/32) bytes; empty if they
            were not asked for.
        version: The digest of the policy, one for the whole answer.
    """

    sample: int
    tokens: tuple[int, ...]
    logprobs: NDArray[np.float32]
    finish: FinishReason
    proofs: bytes
    version: Digest


class Engine(Protocol):
    """Holds one version of one model and draws answers from it. One thread uses it."""

    @property
    def name(self) -> EngineName:
        """Which engine it is."""

    @property
    def dtype(self) -> Dtype:
        """What it computes in."""

    @property
    def version(self) -> Digest | None:
        """The digest of the version that it holds; None before the first load and after one that failed."""

    def load(self, folder: Path, *, version: Digest) -> None:
        """Takes a version of the policy from a Hugging Face folder; in place if the shape is that of the last one.

        Args:
            folder: `config.json`, safetensors and a tokenizer.
            version: The folder's digest, which the caller has checked.

        Raises:
            EngineBusy: `generate` is not exhausted; nothing changed.
            BadVersionFolder: The folder can't be used (see `rollouts.models.facts`); the engine holds nothing now.
            OutOfMemory: The weights do not fit; the engine holds nothing now.
        """

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        with_proofs: bool = True,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Yields one completion for each request, as they finish, in no order.

        Args:
            requests: Each sample once. An answer depends on its own request, the version and the parameters; what else
                is in the batch changes its arithmetic in the last bits, and so a near-tie at most.
            parameters: For all of them.
            with_proofs: Whether proofs are built.
            should_stop: Asked at least once a second.

        Raises:
            InvalidInput: A sample stands twice, or a token is outside the vocabulary.
            PromptTooLong: A prompt and `max_new_tokens` together exceed the model's context.
            NothingLoaded: There are no weights.
            EngineBusy: An earlier `generate` is not exhausted.
            GenerationStopped: `should_stop` said so.
            OutOfMemory: Not even one sequence fits, after smaller batches were tried.
            EngineFailed: It crashed, or a logit is no number.
        """

    def close(self) -> None:
        """Frees what it holds. It can't be used afterwards; closing twice does nothing."""


def check_requests(
    requests: Sequence[SampleRequest], parameters: SamplingParameters, *, vocabulary: int, context: int
) -> None:
    """Refuses what no engine can answer, before any work is done.

    Raises:
        InvalidInput: A sample stands twice, or a token is outside the vocabulary.
        PromptTooLong: A prompt and `max_new_tokens` together exceed the model's context.
    """
    seen: set[int] = set()
    for request in requests:
        if request.sample in seen:
            raise InvalidInput(f"sample {request.sample} stands twice in the batch")
        seen.add(request.sample)
    for prompt in {request.prompt_tokens for request in requests}:
        if len(prompt) + parameters.max_new_tokens > context:
            raise PromptTooLong(
                f"a prompt of {len(prompt)} tokens and {parameters.max_new_tokens} new ones exceed the model's "
                f"context of {context}"
            )
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise InvalidInput(
                f"a prompt has a token outside the model's vocabulary of {vocabulary}",
                hint="encode prompts with the tokenizer of the same folder",
            )
