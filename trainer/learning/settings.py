"""Settings of a learner.

algorithm = "grpo"                 # or { name = "grpo", kl = 1e-3, term = { high = 0.28 } }
row_tokens = 1024
[optimiser]
learning_rate = 2e-4
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rollouts.precision import Dtype
from trainer.learning.algorithms import Algorithm, LearningModel
from trainer.learning.layout import Layout
from trainer.learning.schedules import LearningRateSchedule

_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class OptimiserKind(StrEnum):
    """Kind of optimiser."""

    ADAMW = "adamw"
    MUON = "muon"
    """torch's Muon for matrices inside the model, AdamW for embeddings, the output layer and vectors."""


class OldPolicy(StrEnum):
    """Source of the old log-probabilities in the ratio."""

    SAMPLER = "sampler"
    """The sampler's recorded log-probabilities: the ratio corrects for staleness and asynchrony."""
    RECOMPUTED = "recomputed"
    """The trainer's own log-probabilities at the start of the step. As each batch has one step, every ratio is 1."""


class LearningOptimiser(LearningModel):
    """Settings of the optimiser."""

    kind: OptimiserKind = OptimiserKind.ADAMW
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Maximum learning rate. Muon's updates are scaled to the size of AdamW's at the same rate."""
    schedule: LearningRateSchedule = LearningRateSchedule.CONSTANT
    steps: _Count = 1_000_000
    """Step at which a decaying schedule ends."""
    warm_up_steps: Annotated[int, Field(ge=0)] = 5
    final_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Learning rate of the last step, as a share of the maximum."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.99)
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 0.1
    """Gradient norm to which larger gradients are clipped (INTELLECT-2 section 3: 0.1 kept large models stable)."""
    largest_gradient: Annotated[float, Field(gt=0)] = 1e4
    """A step with a larger gradient norm is skipped."""
    most_bad_steps: Annotated[int, Field(ge=0)] = 3
    """Maximum number of consecutive skipped steps; one more ends the run."""


class LearningSettings(LearningModel):
    """Settings of the learner."""

    algorithm: Algorithm = Algorithm()
    optimiser: LearningOptimiser = LearningOptimiser()
    old_policy: OldPolicy = OldPolicy.SAMPLER
    layout: Layout = Layout.SHARED
    row_tokens: _Count = 1024
    """Maximum tokens of a row: at least the longest prompt plus the longest answer, or the longest dialogue."""
    rows_at_once: _Count = 8
    """Rows of `row_tokens` per forward pass; gradients of several passes are accumulated."""
    dtype: Dtype = Dtype.FLOAT32
    """Type of the forward and backward pass. Weights, gradients and optimiser are always float32."""
    checkpoint_activations: bool = False
    """Recomputes each layer in the backward pass, to save memory."""
    compile: bool = False
    """Compiles each layer. Off by default: compiled kernels made a run of INTELLECT-2 collapse (section 3)."""
