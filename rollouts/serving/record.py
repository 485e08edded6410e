"""Converts between engines' types and the record of an answer (`protocol.wire.answers`)."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from protocol.wire.answers import AnswerRecord, RecordedSample, RecordedSampling
from rollouts.engines.interface import Completion, FinishReason, SampleRequest
from rollouts.precision import Arithmetic
from rollouts.sampling.parameters import SamplingParameters


def recorded_sampling(parameters: SamplingParameters) -> RecordedSampling:
    """Returns the record of sampling parameters."""
    return RecordedSampling(
        max_new_tokens=parameters.max_new_tokens,
        temperature=parameters.temperature,
        top_p=parameters.top_p,
        top_k=parameters.top_k,
    )


def sampling_of(record: RecordedSampling) -> SamplingParameters:
    """Returns the sampling parameters of a record.

    Raises:
        InvalidInput: A value is out of range.
    """
    return SamplingParameters(
        max_new_tokens=record.max_new_tokens, temperature=record.temperature, top_p=record.top_p, top_k=record.top_k
    )


def completion_of(sample: RecordedSample, version: Digest) -> Completion:
    """Returns the completion that a record describes.

    Raises:
        InvalidInput: Tokens and log-probabilities differ in number, or the proofs are not base64.
    """
    if len(sample.logprobs) != len(sample.token_ids):
        raise InvalidInput(
            f"sample {sample.sample} has {len(sample.token_ids)} tokens and {len(sample.logprobs)} log-probabilities"
        )
    try:
        proofs = base64.b64decode(sample.proofs or "", validate=True)
    except ValueError:
        raise InvalidInput(f"the proofs of sample {sample.sample} are not base64") from None
    return Completion(
        sample=sample.sample,
        tokens=tuple(sample.token_ids),
        logprobs=np.array(sample.logprobs, np.float32),
        finish=FinishReason(sample.finish),
        proofs=proofs,
        version=version,
    )


def record_of(
    completions: Sequence[Completion],
    *,
    requests: Sequence[SampleRequest],
    parameters: SamplingParameters,
    arithmetic: Arithmetic,
    with_proofs: bool,
) -> AnswerRecord:
    """Returns the record of a request's completions, which are in the order of the requests.

    Values come from the engine, so they are not validated.
    """
    places: dict[int, int] = {}
    prompts: list[list[int]] = []
    prompt_of: list[int] = []
    for request in requests:
        if id(request.prompt_tokens) not in places:  # requests of one prompt share its tuple
            places[id(request.prompt_tokens)] = len(prompts)
            prompts.append(list(request.prompt_tokens))
        prompt_of.append(places[id(request.prompt_tokens)])
    return AnswerRecord.model_construct(
        version=completions[0].version,
        arithmetic=str(arithmetic),
        seed=f"0x{requests[0].seed.hex()}",
        sampling=recorded_sampling(parameters),
        prompts=prompts,
        samples=[
            RecordedSample.model_construct(
                sample=one.sample,
                prompt=prompt,
                token_ids=list(one.tokens),
                logprobs=one.logprobs.tolist(),
                finish=one.finish.value,
                proofs=base64.b64encode(one.proofs).decode() if with_proofs else None,
            )
            for one, prompt in zip(completions, prompt_of, strict=True)
        ],
    )
