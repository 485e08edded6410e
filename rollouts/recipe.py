"""The recipe of a policy version: `recipe.json` in its folder, and the table of eligible prompts beside it.

The version digest covers both files and the lease names the digest. So the generating node and every verifier use the
same environment, sampling parameters and prompts, and no intermediary can change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from protocol.checkpoints import check_path
from protocol.errors import InvalidInput
from protocol.identifiers import Address, address
from protocol.wire.base import Name
from protocol.wire.runs import MOST_ARITHMETIC
from rollouts.dialogue.formats import FormatName
from rollouts.engines.vllm.numerics import most_positions
from rollouts.environments.rewards import LengthReward
from rollouts.environments.served import NAME as SERVED
from rollouts.environments.served import VERSION as SERVED_VERSION
from rollouts.environments.served import ServedOptions
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import ModelFacts
from rollouts.precision import EXAMPLE, Arithmetic, Dtype, EngineName, arithmetic_name
from rollouts.sampling.parameters import (
    LEAST_TEMPERATURE,
    MOST_NEW_TOKENS,
    MOST_TEMPERATURE,
    MOST_TOP_K,
    NO_TOP_K,
    SamplingParameters,
)

RECIPE_FILE = "recipe.json"
PROMPTS_FILE = "prompts.u64"
"""Indices of eligible prompts in increasing order: unsigned 64-bit little-endian integers, without a header."""

MOST_HELD_OUT = 0.99
_LARGEST_RECIPE = 256 * 1024
_MOST_PROMPTS = 64 * 1024 * 1024
LARGEST_INDEX = 2**63 - 1


class _RecipeModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class EnvironmentChoice(_RecipeModel):
    """An environment's name, version and options."""

    name: Name
    version: Annotated[str, Field(min_length=1, max_length=64)]
    options: dict[str, JsonValue] = {}


class SamplingChoice(_RecipeModel):
    """Sampling settings. Training pools keep `top_p` 1 and `top_k` 0 (off); otherwise the policy gradient is biased."""

    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=MOST_TOP_K)] = NO_TOP_K
    max_new_tokens: Annotated[int, Field(ge=1, le=MOST_NEW_TOKENS)]

    @property
    def parameters(self) -> SamplingParameters:
        """Returns these settings in the engine's parameter type."""
        return SamplingParameters(**dict(self))


class LengthTargets(_RecipeModel):
    """The length reward: `reward = task - alpha * |target - length|`. The slot's seed draws the target."""

    targets: Annotated[tuple[Annotated[int, Field(ge=0, le=2**20)], ...], Field(min_length=1, max_length=64)]
    """Target lengths in output tokens, without the end token."""
    alpha: Annotated[float, Field(gt=0, le=1)]
    template: Annotated[str, Field(max_length=1024)] = "{prompt}"
    """Prompt text for the model; `{prompt}` and `{target}` are replaced."""


MOST_TURNS = 64
"""Maximum messages of the model in a dialogue."""


class DialogueChoice(_RecipeModel):
    """Format and limits of dialogues with an environment that has several turns."""

    format: FormatName
    """How messages become tokens: see `rollouts.dialogue.formats`."""
    turns: Annotated[int, Field(ge=1, le=MOST_TURNS)]
    """Maximum messages of the model; `sampling.max_new_tokens` limits the tokens of all of them together."""
    reply_tokens: Annotated[int, Field(ge=1, le=2**16)] = 512
    """Maximum tokens between two messages of the model; a longer reply is replaced by an error text."""


class PromptRange(_RecipeModel):
    """A range of `count` prompts starting at `first`."""

    kind: Literal["range"] = "range"
    first: Annotated[int, Field(ge=0, le=LARGEST_INDEX)] = 0
    count: Annotated[int, Field(ge=1, le=LARGEST_INDEX)]


class PromptTable(_RecipeModel):
    """The prompts listed in `prompts.u64`."""

    kind: Literal["table"] = "table"
    count: Annotated[int, Field(ge=1, le=_MOST_PROMPTS)]


PAIRS = tuple(arithmetic_name(engine, dtype) for engine in EngineName for dtype in Dtype)
"""All combinations of engine and data type, as a recipe names them."""

UNNAMED = tuple(arithmetic_name(engine, Dtype.FLOAT32) for engine in EngineName)
"""Combinations whose rollouts are paid if the recipe names no arithmetic. Other data types need wider limits, so the
run's owner must name them in the recipe to accept them (decision 48)."""


def _check_arithmetic(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        try:
            Arithmetic.parse(name)
        except ValueError as error:
            hint = f"use {', '.join(PAIRS)}, or a numerics class such as {EXAMPLE}"
            raise ValueError(f"{error}; {hint}") from error
    if len(set(names)) < len(names):
        raise ValueError("an engine with its data type, or a numerics class, is named twice")
    return names


TakenArithmetic = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=64)], ...],
    Field(max_length=MOST_ARITHMETIC),
    AfterValidator(_check_arithmetic),
]
"""Members of `PAIRS` and numerics classes; an empty tuple means `UNNAMED`."""


class Recipe(_RecipeModel):
    """Defines how rollouts of one version are generated."""

    format: Literal[2] = 2
    """Recipes of format 1 had the same fields, but their slots drew held-out prompts, and text in prompts could become
    control tokens."""
    environment: EnvironmentChoice
    sampling: SamplingChoice
    group_size: Annotated[int, Field(ge=1, le=4096)]
    """Samples per prompt."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=2**20)] = 4096
    chat: bool | ChatFormat = False
    """Wraps each prompt as a user turn in the tokenizer's chat template, optionally with a system turn and options."""
    length: LengthTargets | None = None
    dialogue: DialogueChoice | None = None
    """Set if and only if the environment has several turns. The field is serialised only if it is set."""
    held_out: Annotated[float, Field(ge=0, le=MOST_HELD_OUT)] = 0.0
    """Share of prompts, selected by `is_held_out`, that slots skip even if `prompts` lists them; evaluations use these
    prompts.
    """
    arithmetic: TakenArithmetic = ()
    """The accepted arithmetics: engines with data types, such as `torch/float32`, and numerics classes, such as
    `vllm-0.32.0/bfloat16/cpu-avx2`. Empty means float32 with either engine. Validators verify files of a class by the
    same class, which must compute the same bits; they verify other files by torch, with the limits of a calibration.
    The field is serialised only if not empty, so that older recipes keep their bytes and digests."""
    prompts: Annotated[PromptRange | PromptTable, Field(discriminator="kind")]

    @model_serializer(mode="wrap")
    def _omit_unset(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialise(self)
        if not self.arithmetic:
            values.pop("arithmetic", None)
        if self.dialogue is None:
            values.pop("dialogue", None)
        return values

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if isinstance(self.prompts, PromptRange) and self.prompts.first + self.prompts.count > LARGEST_INDEX:
            raise ValueError("the range of prompts ends past 2^63")
        return self

    @model_validator(mode="after")
    def _check_dialogue(self) -> Self:
        if self.dialogue is None:
            return self
        if self.length is not None:
            raise ValueError("a dialogue has no length reward")
        if self.dialogue.format is FormatName.PLAIN and self.chat:
            raise ValueError("the dialogue format plain has no chat settings: set chat to false, or use another format")
        return self

    @model_validator(mode="after")
    def _check_served(self) -> Self:
        if self.environment.name != SERVED:
            return self
        if self.group_size != 1 or self.length is not None or self.held_out:
            raise ValueError("a served version has group_size 1, and neither a length reward nor held-out prompts")
        if self.prompts != PromptRange(count=1):
            raise ValueError('the prompts of a served version come from clients: prompts must be {"count": 1}')
        try:
            ServedOptions.model_validate(self.environment.options)
        except ValidationError as error:
            raise ValueError(f"environment.options.gateway: {error.errors()[0]['msg']}") from None
        return self

    @property
    def gateway(self) -> Address | None:
        """Address of the gateway whose clients' requests are the prompts; None unless the environment is `served`."""
        if self.environment.name != SERVED:
            return None
        return address(str(self.environment.options.get("gateway", "")))

    def check_has_prompts(self) -> None:
        """Checks that prompts come from the environment, as training and evaluation need.

        Raises:
            InvalidInput: The version is served.
        """
        if self.gateway is not None:
            raise InvalidInput(
                "the prompts of this run come from the clients of a gateway",
                hint="a served version is published and served, and neither trained nor evaluated; for that, write a "
                "recipe with another environment",
            )

    def longest_prompt(self, context: int) -> int:
        """Returns the maximum number of prompt tokens for a model with this context.

        Prompts of a served version are limited by the context alone: a gateway has no tokenizer and can't refuse a long
        prompt, so a stricter limit would blame nodes for what clients send.
        """
        return context - 1 if self.gateway is not None else min(self.max_prompt_tokens, context - 1)

    @property
    def most_given_tokens(self) -> int:
        """Maximum number of tokens that the environment gives between the turns of a sample."""
        return 0 if self.dialogue is None else (self.dialogue.turns - 1) * self.dialogue.reply_tokens

    def row_tokens(self, context: int) -> int:
        """Returns the maximum number of tokens of a sample with its prompt, for a model with this context."""
        if self.gateway is not None:
            return context
        return min(context, self.max_prompt_tokens + self.sampling.max_new_tokens + self.most_given_tokens)

    @property
    def length_reward(self) -> LengthReward | None:
        """The length reward's rule; None if the recipe has none."""
        return None if self.length is None else LengthReward(self.length.targets, self.length.alpha)

    @property
    def taken(self) -> tuple[str, ...]:
        """The arithmetics whose rollouts are paid: `arithmetic`, or `UNNAMED` if that is empty."""
        return self.arithmetic or UNNAMED

    def takes(self, arithmetic: Arithmetic) -> bool:
        """Returns whether rollouts of this engine and data type, or of this numerics class, are paid."""
        return str(arithmetic) in self.taken

    @property
    def units_per_group(self) -> int:
        """Maximum output tokens of one group; a lease's limit of work units is a multiple of it."""
        return self.group_size * self.sampling.max_new_tokens


def serving_recipe(
    gateway: Address, *, max_new_tokens: int, max_prompt_tokens: int, arithmetic: Sequence[str] = ()
) -> Recipe:
    """Returns the recipe of a version whose prompts come from the clients of a gateway.

    Args:
        gateway: Address of the key with which the gateway signs lists of requests.
        max_new_tokens: Limit of answer tokens.
        max_prompt_tokens: Limit of prompt tokens.
        arithmetic: Accepted engines and data types, or numerics classes; empty for float32 on either engine.
    """
    return Recipe(
        environment=EnvironmentChoice(name=SERVED, version=SERVED_VERSION, options={"gateway": gateway}),
        sampling=SamplingChoice(max_new_tokens=max_new_tokens),
        group_size=1,
        max_prompt_tokens=max_prompt_tokens,
        arithmetic=tuple(arithmetic),
        prompts=PromptRange(count=1),
    )


class EligiblePrompts(Sequence[int]):
    """The indices of the prompts that slots draw from, in increasing order."""

    def __init__(self, indices: range | NDArray[np.uint64]) -> None:
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, position: int) -> int: ...

    @overload
    def __getitem__(self, position: slice) -> EligiblePrompts: ...

    def __getitem__(self, position: int | slice) -> int | EligiblePrompts:
        if isinstance(position, slice):
            return EligiblePrompts(self._indices[position])
        return int(self._indices[position])


def read_recipe(folder: Path) -> Recipe:
    """Reads `recipe.json` from a version folder.

    Raises:
        BadVersionFolder: The file is missing, too large or invalid.
    """
    path = folder / RECIPE_FILE
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_RECIPE + 1)
    except OSError as error:
        raise BadVersionFolder(
            f"{path} can't be read: {error.strerror}",
            hint="a version that generates rollouts has a recipe.json beside its weights",
        ) from error
    if len(text) > _LARGEST_RECIPE:
        raise BadVersionFolder(f"{path} has more than {_LARGEST_RECIPE} bytes")
    try:
        return Recipe.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        hint = "docs/rollouts.md describes the file"
        if place == "format":
            hint = "set format to 2; format 1, which drew held-out prompts too, is not supported"
        raise BadVersionFolder(f"{path}: {place}: {first['msg']}", hint=hint) from error


def check_classes(recipe: Recipe, model: ModelFacts, *, folder: Path) -> None:
    """Checks that the numerics classes of a recipe have reproducible bits for its longest rows.

    Raises:
        BadVersionFolder: The recipe allows rows that are longer than one of its classes can reproduce.
    """
    longest = recipe.row_tokens(model.context)
    width = model.config.get("head_dim") or model.hidden // (model.config.get("num_attention_heads") or 1)
    for name in recipe.arithmetic:
        arithmetic = Arithmetic.parse(name)
        most = most_positions(arithmetic.device, head_width=width) if arithmetic.is_class else None
        if most is not None and longest > most:
            raise BadVersionFolder(
                f"{folder}: {name} is exact up to {most} tokens of prompt and answer for this model, but the recipe "
                f"allows {longest}",
                hint="lower max_prompt_tokens or max_new_tokens in the recipe, or accept torch/float32 instead",
            )


def write_recipe(folder: Path, recipe: Recipe, *, eligible: Sequence[int] = ()) -> None:
    """Writes a version's recipe, and its table of eligible prompts if the recipe names one.

    Raises:
        InvalidInput: The table's length differs from the recipe's count, or the indices do not increase.
    """
    if isinstance(recipe.prompts, PromptTable):
        indices = np.asarray(eligible, dtype=np.uint64)
        if len(indices) != recipe.prompts.count or not _increasing(indices):
            raise InvalidInput(
                f"the recipe needs a table of {recipe.prompts.count} increasing indices, not these {len(indices)}",
                hint="give each eligible index once, in increasing order",
            )
        (folder / check_path(PROMPTS_FILE)).write_bytes(indices.astype("<u8").tobytes())
    (folder / RECIPE_FILE).write_text(recipe.model_dump_json(indent=2) + "\n")


def eligible_prompts(folder: Path, recipe: Recipe) -> EligiblePrompts:
    """Returns the prompts from which this version's slots draw, including held-out prompts, which slots skip.

    The table (at most 512 MiB) is read into memory, not mapped: a process that can write to the folder could change a
    mapped table after its check, or crash this process by truncating the file.

    Raises:
        BadVersionFolder: The table is missing, differs in length from the recipe's count, or does not increase.
    """
    prompts = recipe.prompts
    if isinstance(prompts, PromptRange):
        return EligiblePrompts(range(prompts.first, prompts.first + prompts.count))
    path = folder / PROMPTS_FILE
    try:
        size = path.stat().st_size
        if size != 8 * prompts.count:
            raise BadVersionFolder(f"{path} has {size} bytes, but {prompts.count} prompts need {8 * prompts.count}")
        indices = np.fromfile(path, dtype="<u8", count=prompts.count)
    except OSError as error:
        raise BadVersionFolder(f"{path} can't be read: {error.strerror}") from error
    if len(indices) != prompts.count:
        raise BadVersionFolder(f"{path} was truncated while it was being read")
    if not _increasing(indices) or int(indices[-1]) > LARGEST_INDEX:
        raise BadVersionFolder(f"the indices in {path} do not increase, or end past 2^63")
    return EligiblePrompts(indices)


def _increasing(indices: NDArray[np.uint64]) -> bool:
    return bool(np.all(indices[1:] > indices[:-1]))
