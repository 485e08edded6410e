"""Builds rollout files without a lease or rewards.

Calibration, self-tests and benchmarks write such files; `rollouts.task.generator` writes the files of a node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST, Digest
from rollouts.engines.interface import Completion
from rollouts.files.samples import Sample, SlotHeader
from rollouts.precision import Arithmetic


def unleased_header(
    *,
    arithmetic: Arithmetic,
    checkpoint: Digest = ZERO_DIGEST,
    environment: str = "none",
    environment_version: str = "1",
) -> SlotHeader:
    """Returns a header that names no run and no node."""
    return SlotHeader(
        run=ZERO_DIGEST,
        step=0,
        index=0,
        node=ZERO_ADDRESS,
        checkpoint=checkpoint,
        environment=environment,
        environment_version=environment_version,
        arithmetic=arithmetic,
    )


def unrewarded_sample(
    completion: Completion,
    *,
    prompt: Sequence[int],
    group: int = 0,
    prompt_index: int = 0,
    target_length: int | None = None,
) -> Sample:
    """Returns the row of an answer with a reward of 0."""
    return Sample(
        group=group,
        sample=completion.sample,
        prompt_index=prompt_index,
        prompt_tokens=np.array(prompt, np.int32),
        output_tokens=np.array(completion.tokens, np.int32),
        logprobs=completion.logprobs,
        finish=completion.finish,
        task_reward=0.0,
        length_penalty=0.0,
        reward=0.0,
        target_length=target_length,
        proofs=completion.proofs,
    )
