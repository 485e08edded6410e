"""Answers of an engine as the file that a node would make of them, without rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST
from rollouts.engines.interface import Completion, Dtype, EngineName, SampleRequest
from rollouts.samples import RolloutFile, Sample, SlotHeader


def as_file(
    requests: Sequence[SampleRequest], completions: Iterable[Completion], *, engine: EngineName, dtype: Dtype
) -> RolloutFile:
    """One file, in the order of the requests."""
    drawn = {one.sample: one for one in completions}
    header = SlotHeader(
        run=ZERO_DIGEST,
        step=0,
        index=0,
        node=ZERO_ADDRESS,
        checkpoint=ZERO_DIGEST,
        environment="none",
        environment_version="1",
        engine=engine,
        dtype=dtype,
    )
    return RolloutFile(header, tuple(_sample(request, drawn[request.sample]) for request in requests))


def _sample(request: SampleRequest, completion: Completion) -> Sample:
    return Sample(
        group=0,
        sample=request.sample,
        prompt_index=0,
        prompt_tokens=np.array(request.prompt_tokens, np.int32),
        output_tokens=np.array(completion.tokens, np.int32),
        logprobs=completion.logprobs,
        finish=completion.finish,
        task_reward=0.0,
        length_penalty=0.0,
        reward=0.0,
        target_length=None,
        proofs=completion.proofs,
    )
