"""Opens, creates and writes trainable models."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from safetensors import SafetensorError
from torch.nn import Parameter
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rollouts.errors import BadVersionFolder
from rollouts.models.architecture import check_architecture
from rollouts.models.facts import COMPANION_FILES, ModelFacts, read_model
from rollouts.models.policy import quiet_transformers
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype
from rollouts.recipe import Recipe, write_recipe
from trainer.errors import BadSettings
from trainer.models.characters import END, PAD, write_character_tokenizer
from trainer.saving.files import whole_folder
from trainer.saving.training_state import stored_weights

# transformers annotates only some of its functions, and some of these annotations are wrong.
_CONFIGS: Any = AutoConfig
_MODELS: Any = AutoModelForCausalLM

TORCH_TYPES = {Dtype.FLOAT32: torch.float32, Dtype.BFLOAT16: torch.bfloat16}


def make_model(folder: Path, *, model_type: str, config: Mapping[str, JsonValue], characters: str, seed: int) -> None:
    """Writes a model with random weights and a character tokenizer; equal arguments give equal weights.

    Raises:
        BadSettings: transformers has no such model type, or the config is invalid for it.
        NotWritten: The disk is full or refuses the write.
    """
    with whole_folder(folder) as partial, quiet_transformers():
        tokens = write_character_tokenizer(partial, characters)
        given = {"vocab_size": tokens, "eos_token_id": END, "pad_token_id": PAD, "bos_token_id": None} | dict(config)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                model = _MODELS.from_config(_CONFIGS.for_model(model_type, **given), dtype=torch.float32)
            except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ZeroDivisionError) as error:
                first_line = str(error).strip().split("\n")[0]
                raise BadSettings(f"no {model_type[:40]} model has this config: {first_line[:200]}") from error
        model.save_pretrained(partial)


def open_model(folder: Path, *, device: torch.device) -> tuple[PreTrainedModel, ModelFacts]:
    """Loads a folder's model for training, in float32.

    Raises:
        BadVersionFolder: The folder can't be used, for example because the tokenizer has tokens that the model lacks.
    """
    facts = read_model(folder)
    with quiet_transformers():
        try:
            model, info = _MODELS.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, OSError, SafetensorError) as error:
            first_line = str(error).strip().split("\n")[0]
            raise BadVersionFolder(f"no model can be loaded from {folder}: {first_line}") from error
    check_architecture(model, folder)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise BadVersionFolder(f"the weights in {folder} do not match its config")
    ready: PreTrainedModel = model.to(device)
    return ready, facts


def end_token(facts: ModelFacts, tokenizer: FolderTokenizer) -> int:
    """Returns the tokenizer's end token if the model ends answers with it, else the model's lowest end token."""
    own = tokenizer.end_token
    return own if own in facts.end_tokens and own is not None else min(facts.end_tokens)


def write_version(
    folder: Path,
    model: PreTrainedModel,
    *,
    start: Path,
    dtype: Dtype,
    recipe: Recipe | None,
    eligible: Sequence[int] = (),
) -> None:
    """Writes a publishable version of an unsharded model, without changing the model.

    Args, Raises: As for `write_weights`; `dtype` is the type of the stored weights.
    """
    kind = TORCH_TYPES[dtype]
    form, weights = without_weights(model, dtype=dtype), stored_weights(model, dtype=kind)
    write_weights(folder, form, weights, start=start, recipe=recipe, eligible=eligible)


def without_weights(model: PreTrainedModel, *, dtype: Dtype) -> PreTrainedModel:
    """Returns a copy of the model with weights on the meta device.

    There the weights take no memory.

    Args:
        model: The model before sharding.
        dtype: Type of the stored weights.
    """
    kind = TORCH_TYPES[dtype]
    memo: dict[int, Any] = {
        id(weight): Parameter(torch.empty(weight.shape, dtype=kind, device="meta"), requires_grad=False)
        for weight in model.parameters()
    }
    form: PreTrainedModel = copy.deepcopy(model, memo)
    return form


def write_weights(
    folder: Path,
    form: PreTrainedModel,
    weights: dict[str, torch.Tensor],
    *,
    start: Path,
    recipe: Recipe | None,
    eligible: Sequence[int] = (),
) -> None:
    """Writes a publishable version: weights, config, tokenizer and recipe.

    Args:
        folder: Target folder, created atomically.
        form: Result of `without_weights`.
        weights: Result of `stored_weights` with the dtype of `form`. transformers may empty this dict while it writes
            the file.
        start: Folder that training started from.
        recipe: Recipe of the version; None if workers do not generate rollouts with the version.
        eligible: Table of eligible prompts, if the recipe has one.

    Raises:
        NotWritten: The disk is full or refuses the write.
    """
    writer: Any = form  # transformers annotates only some of its methods
    with whole_folder(folder) as partial, quiet_transformers():
        writer.save_pretrained(partial, state_dict=weights)
        for name in COMPANION_FILES:
            if (start / name).is_file():
                shutil.copyfile(start / name, partial / name)
        if recipe is not None:
            write_recipe(partial, recipe, eligible=eligible)
