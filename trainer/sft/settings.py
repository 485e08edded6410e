"""Settings of a warm-up: a TOML file, a preset, or options of `muster trainer sft`.

seed = 1
steps = 1500
[start]                 # source of the weights: a folder, or a config with a seed
kind = "folder"
folder = "models/base"
[examples]              # an environment's demonstrations, or a file of completions or dialogues
kind = "environment"
[recipe]                # use of the result, see docs/rollouts.md; required for an environment's examples
environment = { name = "letters", version = "1" }
sampling = { max_new_tokens = 12 }
group_size = 16
held_out = 0.1
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from protocol.errors import plain_message
from rollouts.dialogue.formats import FormatName
from rollouts.precision import Dtype
from rollouts.recipe import (
    MOST_HELD_OUT,
    DialogueChoice,
    EnvironmentChoice,
    LengthTargets,
    SamplingChoice,
    TakenArithmetic,
)
from trainer.errors import BadSettings
from trainer.learning.schedules import LearningRateSchedule

_MOST_BYTES = 1024 * 1024
_Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _SftModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FolderStart(_SftModel):
    """Weights and tokenizer of a Hugging Face folder."""

    kind: Literal["folder"] = "folder"
    folder: Path


class ScratchStart(_SftModel):
    """Random weights from the settings' seed, and a tokenizer of single characters."""

    kind: Literal["scratch"] = "scratch"
    model_type: Annotated[str, Field(min_length=1, max_length=64)] = "llama"
    """Model type in transformers."""
    config: dict[str, JsonValue]
    """Changes to the default configuration of the model type."""
    characters: str
    """Characters of the tokenizer, one token each, after the tokens for padding, end and unknown characters."""


class EnvironmentExamples(_SftModel):
    """Demonstrations of the recipe's environment, without held-out prompts."""

    kind: Literal["environment"] = "environment"
    first: Annotated[int, Field(ge=0, le=2**62)] = 0
    """Index of the first prompt."""
    count: _Count | None = None
    """Number of candidates; None for all prompts of a finite environment."""


class FileExamples(_SftModel):
    """A file with rows of `prompt` and `completion`, JSON lines or Parquet; or of `messages`, JSON lines."""

    kind: Literal["file"] = "file"
    path: Path
    format: FormatName | None = None
    """Format of dialogues. None for that of the recipe's dialogues, or else the chat template of the tokenizer."""


class ResultRecipe(_SftModel):
    """Recipe of the version that the warm-up writes.

    Its eligible prompts are a range of candidates without held-out ones.
    """

    environment: EnvironmentChoice
    sampling: SamplingChoice
    group_size: Annotated[int, Field(ge=1, le=4096)] = 16
    max_prompt_tokens: Annotated[int, Field(ge=1, le=2**20)] = 4096
    chat: bool = False
    length: LengthTargets | None = None
    dialogue: DialogueChoice | None = None
    """Required by an environment with several turns."""
    held_out: Annotated[float, Field(ge=0, le=MOST_HELD_OUT)] = 0.1
    """Share of prompts that is excluded from all training."""
    arithmetic: TakenArithmetic = ()
    """Accepted engines and dtypes, such as `torch/float32`; empty for float32 of either engine."""
    first: Annotated[int, Field(ge=0, le=2**62)] = 0
    """Index of the first candidate prompt."""
    count: Annotated[int, Field(ge=1, le=2**26)] | None = None
    """Number of candidate prompts; None for all prompts of a finite environment."""


class Optimiser(_SftModel):
    """Settings of AdamW."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """Maximum learning rate."""
    schedule: LearningRateSchedule = LearningRateSchedule.COSINE
    warm_up_steps: Annotated[int, Field(ge=0)] = 20
    final_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Learning rate of the last step, as a share of the maximum."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    """Maximum gradient norm; larger gradients are clipped."""
    most_bad_steps: Annotated[int, Field(ge=0)] = 3
    """Maximum consecutive steps skipped because of NaN or infinity; one more ends the warm-up."""


class EvaluationChoice(_SftModel):
    """Evaluations during the warm-up; they do not change the result."""

    every: Annotated[int, Field(ge=0)] = 0
    """Steps between evaluations; 0 for one at the end only."""
    prompts: Annotated[int, Field(ge=0, le=2**20)] = 256
    """Number of held-out prompts; 0 for no evaluation."""
    samples: Annotated[int, Field(ge=0, le=4096)] = 0
    """Number of sampled answers per prompt for pass@k, in addition to the greedy answer."""


class WarmUpSettings(_SftModel):
    """Settings of a warm-up."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of a model from scratch and of the order of examples."""
    start: Annotated[FolderStart | ScratchStart, Field(discriminator="kind")]
    examples: Annotated[EnvironmentExamples | FileExamples, Field(discriminator="kind")] = EnvironmentExamples()
    recipe: ResultRecipe | None = None
    steps: _Count = 1000
    examples_per_step: _Count = 64
    row_tokens: _Count = 1024
    """Maximum tokens of a packed row; longer examples are skipped. The default is lowered to the model's context."""
    rows_at_once: _Count = 8
    """Rows per forward pass; gradients of a step's further rows are accumulated."""
    optimiser: Optimiser = Optimiser()
    dtype: Dtype = Dtype.BFLOAT16
    """Type of the result's weights; training is in float32."""
    checkpoint_every: _Count = 100
    """Steps between two saved states; a crash loses at most this many steps."""
    evaluation: EvaluationChoice = EvaluationChoice()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.recipe is None and isinstance(self.examples, EnvironmentExamples):
            raise ValueError("an environment's demonstrations need a recipe that names the environment")
        return self


def check_settings(values: Mapping[str, object], *, source: str) -> WarmUpSettings:
    """Validates plain values as settings.

    Raises:
        BadSettings: A value is unknown, missing or invalid; the message names it and `source`.
    """
    try:
        return WarmUpSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadSettings(
            f"{source}: {place or 'settings'}: {plain_message(first['msg'])}",
            hint="docs/trainer.md lists the settings of a warm-up",
        ) from error


def read_settings_file(path: Path) -> dict[str, object]:
    """Reads a TOML file of settings without validating them, because options may still change them.

    Raises:
        BadSettings: The file can't be read or is not TOML.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise BadSettings(f"{path} has more than {_MOST_BYTES} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise BadSettings(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadSettings(f"{path} is not TOML: {error}") from error
