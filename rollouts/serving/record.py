"""The field `muster` of every answer: all that is needed to verify the answer with the version's folder."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from protocol.errors import InvalidInput
from protocol.identifiers import Digest, WireDigest
from rollouts.engines.interface import Completion, FinishReason, SampleRequest
from rollouts.precision import Arithmetic
from rollouts.sampling.parameters import SamplingParameters

Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, max_length=1 << 20)]

MOST_SAMPLES = 4096


class RecordedSampling(BaseModel):
    """The sampling parameters of an answer; see `SamplingParameters`."""

    model_config = ConfigDict(frozen=True)

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int

    @classmethod
    def of(cls, parameters: SamplingParameters) -> Self:
        """Returns the record of sampling parameters."""
        return cls(
            max_new_tokens=parameters.max_new_tokens,
            temperature=parameters.temperature,
            top_p=parameters.top_p,
            top_k=parameters.top_k,
        )

    @property
    def parameters(self) -> SamplingParameters:
        """The sampling parameters.

        Raises:
            InvalidInput: A value is out of range.
        """
        return SamplingParameters(
            max_new_tokens=self.max_new_tokens, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k
        )


class RecordedSample(BaseModel):
    """One choice of an answer.

    Args:
        sample: The choice's index. With the seed, this number keys the noise of every token.
        prompt: Index of the choice's prompt in `AnswerRecord.prompts`.
        token_ids: The tokens, including an end token.
        logprobs: float32 log-probability of each token, log-softmax(logits / temperature).
        finish: Reason why the answer ended.
        proofs: TOPLOC proofs in base64; None if the service builds none.
    """

    model_config = ConfigDict(frozen=True)

    sample: int = Field(ge=0, lt=1 << 32)
    prompt: int = Field(ge=0)
    token_ids: Tokens
    logprobs: list[float]
    finish: FinishReason
    proofs: str | None

    @classmethod
    def of(cls, completion: Completion, *, prompt: int, with_proofs: bool) -> RecordedSample:
        """Returns the record of a completion."""
        return cls.model_construct(  # the engine's values need no validation
            sample=completion.sample,
            prompt=prompt,
            token_ids=list(completion.tokens),
            logprobs=completion.logprobs.tolist(),
            finish=completion.finish,
            proofs=base64.b64encode(completion.proofs).decode() if with_proofs else None,
        )

    def completion(self, version: Digest) -> Completion:
        """Returns the completion.

        Raises:
            InvalidInput: Tokens and log-probabilities differ in number, or the proofs are not base64.
        """
        if len(self.logprobs) != len(self.token_ids):
            raise InvalidInput(
                f"sample {self.sample} has {len(self.token_ids)} tokens and {len(self.logprobs)} log-probabilities"
            )
        try:
            proofs = base64.b64decode(self.proofs or "", validate=True)
        except ValueError:
            raise InvalidInput(f"the proofs of sample {self.sample} are not base64") from None
        return Completion(
            sample=self.sample,
            tokens=tuple(self.token_ids),
            logprobs=np.array(self.logprobs, np.float32),
            finish=self.finish,
            proofs=proofs,
            version=version,
        )


class AnswerRecord(BaseModel):
    """The field `muster` of an answer.

    Args:
        version: Digest of the version that generated the answer.
        arithmetic: Engine and data type, or the numerics class.
        seed: The request's 32 bytes, as hexadecimal text after 0x.
        sampling: Sampling parameters.
        prompts: Token ids of each prompt.
        samples: The choices, by index.
    """

    model_config = ConfigDict(frozen=True)

    version: WireDigest
    arithmetic: str
    seed: str = Field(pattern=r"^0x[0-9a-f]{64}$")
    sampling: RecordedSampling
    prompts: list[Tokens] = Field(min_length=1, max_length=MOST_SAMPLES)
    samples: list[RecordedSample] = Field(min_length=1, max_length=MOST_SAMPLES)

    @classmethod
    def of(
        cls,
        completions: Sequence[Completion],
        *,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        arithmetic: Arithmetic,
        with_proofs: bool,
    ) -> AnswerRecord:
        """Returns the record of a request's completions, which are in the order of the requests."""
        places: dict[int, int] = {}
        prompts: list[list[int]] = []
        prompt_of: list[int] = []
        for request in requests:
            if id(request.prompt_tokens) not in places:  # requests of one prompt share its tuple
                places[id(request.prompt_tokens)] = len(prompts)
                prompts.append(list(request.prompt_tokens))
            prompt_of.append(places[id(request.prompt_tokens)])
        return cls.model_construct(
            version=completions[0].version,
            arithmetic=str(arithmetic),
            seed=f"0x{requests[0].seed.hex()}",
            sampling=RecordedSampling.of(parameters),
            prompts=prompts,
            samples=[
                RecordedSample.of(one, prompt=prompt, with_proofs=with_proofs)
                for one, prompt in zip(completions, prompt_of, strict=True)
            ],
        )

    @property
    def seed_bytes(self) -> bytes:
        """The seed."""
        return bytes.fromhex(self.seed[2:])
