"""Contents of a rollout file: the slot's header and its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.identifiers import Address, Digest
from protocol.wire.served import SignedServedList
from rollouts.engines.interface import FinishReason
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.turns import Turn, interleave

MOST_LOG_PROBABILITY = 1e-4
"""In float32, log-softmax of a token with probability 1 may exceed 0 by this much. Validators accept such files and
pools pay for them, so readers of accepted files must accept them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHeader:
    """Fields that all samples of a file share.

    Args:
        run: The run id.
        step: The slot's training step.
        index: The slot's number among this node's slots of the step.
        node: The generating node.
        checkpoint: The version digest of the policy.
        environment: Name of the environment.
        environment_version: Version of the environment.
        arithmetic: The generating engine and its data type, or a numerics class.
    """

    run: Digest
    step: int
    index: int
    node: Address
    checkpoint: Digest
    environment: str
    environment_version: str
    arithmetic: Arithmetic

    @property
    def engine(self) -> EngineName:
        """The generating engine."""
        return self.arithmetic.engine

    @property
    def dtype(self) -> Dtype:
        """The engine's data type."""
        return self.arithmetic.dtype


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One completion of one prompt.

    Args:
        group: The prompt's number in the slot, from 0; the file has all samples of a group or none.
        sample: The sample's number in the slot, from 0: `group * group_size + i`. With the seed, this number keys the
            noise.
        prompt_index: The prompt's index in the environment.
        prompt_tokens: int32, shape (P,).
        output_tokens: int32, shape (T,), including the end token if there is one.
        logprobs: float32, shape (T,): log-softmax(logits / temperature) of each output token, before top-k, top-p and
            noise.
        finish: Reason why the answer ended.
        task_reward: The environment's score.
        length_penalty: Penalty of the length reward, 0 or more.
        reward: `task_reward - length_penalty`.
        target_length: The prompt's target length; None without a length reward.
        proofs: Concatenated TOPLOC proofs.
        turns: Turns of a dialogue, whose numbers of drawn tokens sum to T; empty for a single answer. `output_tokens`,
            `logprobs` and `proofs` concern drawn tokens only.
    """

    group: int
    sample: int
    prompt_index: int
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish: FinishReason
    task_reward: float
    length_penalty: float
    reward: float
    target_length: int | None
    proofs: bytes
    turns: tuple[Turn, ...] = ()

    @property
    def tokens_after_prompt(self) -> NDArray[np.int32]:
        """All tokens after the prompt, drawn and given ones, int32."""
        return interleave(self.output_tokens, self.turns)


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """A whole rollout file; samples are in the order of its rows.

    Args:
        header: Fields that all samples share.
        samples: The samples.
        served: The gateway's list of the requests that the slot answered; None unless the slot was served.
    """

    header: SlotHeader
    samples: tuple[Sample, ...]
    served: SignedServedList | None = None

    @property
    def units(self) -> int:
        """Work units: the number of generated tokens."""
        return work_units(self.samples)

    @property
    def is_dialogue(self) -> bool:
        """Whether the samples are dialogues."""
        return any(sample.turns for sample in self.samples)


def work_units(samples: Sequence[Sample]) -> int:
    """Returns the work units of samples: their generated tokens."""
    return sum(len(sample.output_tokens) for sample in samples)
