"""Checks that engines, verifiers and the trainer all compute a model in the same way.

Generation stores keys and values by position. Prefill and trainer put several answers into one row; positions and a
mask determine which tokens each token sees. Both methods are correct only if attention over earlier tokens is the only
connection between tokens. A recurrent layer, for example, would carry its state from one answer into the next, without
raising an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rollouts.errors import BadVersionFolder

# transformers annotates these only partly.
_CONFIGS: Any = AutoConfig
_MODELS: Any = AutoModelForCausalLM

FULL_ATTENTION = "full_attention"


def check_architecture(model: PreTrainedModel, folder: Path) -> None:
    """Checks that causal full attention is the only connection between the model's tokens.

    Args:
        model: The model, with or without weights.
        folder: The model's folder, for the error message.

    Raises:
        BadVersionFolder: The model has another connection between tokens; the message names it.
    """
    if missing := next(_missing(model), None):
        kind = getattr(model.config, "model_type", type(model).__name__)
        raise BadVersionFolder(
            f"the model in {folder} is of type {kind}, which is not supported: {missing}",
            hint="use a causal model with full attention in all layers, such as Llama, Qwen 2 or 3, or Granite",
        )


def check_model_folder(folder: Path) -> None:
    """Checks the architecture of a folder's model without its weights.

    Raises:
        BadVersionFolder: transformers has no causal language model for the config, or engines can't use the model.
    """
    try:
        config = _CONFIGS.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = _MODELS.from_config(config, trust_remote_code=False)
    except (ValueError, RuntimeError, KeyError, TypeError, AttributeError, OSError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise BadVersionFolder(f"no model can be made from {folder}: {first_line[:200]}") from error
    check_architecture(model, folder)


def _missing(model: PreTrainedModel) -> Iterator[str]:
    """Yields descriptions of required properties that the model lacks."""
    kind: Any = type(model)  # transformers annotates only some of these
    config: Any = model.config.get_text_config()
    if kind._is_stateful:
        yield "it has layers with a recurrent state"
    if "position_ids" not in inspect.signature(kind.forward).parameters:
        yield "it does not accept token positions (position_ids)"
    if not (kind._supports_sdpa and kind._supports_attention_backend):
        yield "transformers does not compute its attention by scaled dot product with any mask"
    layer_types = getattr(config, "layer_types", None)
    if others := set(layer_types or ()) - {FULL_ATTENTION}:
        yield f"it has layers other than full attention: {', '.join(sorted(map(str, others)))}"
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if layer_types is None and window is not None:
        yield f"its layers attend to the last {window} tokens only (sliding_window)"
    causal = [bool(module.is_causal) for module in model.modules() if hasattr(module, "is_causal")]
    if not all(causal):
        yield "some of its attention sees later tokens"
    if len(causal) < config.num_hidden_layers:
        yield f"only {len(causal)} of its {config.num_hidden_layers} layers have causal attention"
