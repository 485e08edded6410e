"""Runs rows through a model and computes the logits of answer tokens only.

A hook before the output layer selects the hidden states of answer tokens. The model's own code then computes the
logits, so operations that a model applies to its logits (scaling, soft caps) stay in effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Module
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rollouts.precision import Dtype
from trainer.learning.layout import PackedBatch


def answer_logits(model: PreTrainedModel, rows: PackedBatch, *, dtype: Dtype) -> torch.Tensor:
    """Returns the logits from which the answers' tokens were sampled, [N, V], in the order of `rows.answers`.

    Args:
        model: Any causal model of transformers.
        rows: Rows of the batch.
        dtype: Type of the computation; the weights keep their type.
    """
    call: Any = model  # transformers annotates only some of its methods
    device = model.device
    places = torch.from_numpy(rows.places).to(device)
    with (
        _only(call.get_output_embeddings(), places),
        torch.autocast(device.type, torch.bfloat16, enabled=dtype == Dtype.BFLOAT16),
    ):
        logits: torch.Tensor = call(
            input_ids=torch.from_numpy(rows.tokens).to(device),
            position_ids=torch.from_numpy(rows.positions).to(device),
            attention_mask=None if rows.plain else torch.from_numpy(rows.mask[:, None]).to(device),
            use_cache=False,
        ).logits
    return logits[0]


def layers_of(model: Module) -> list[Module]:
    """Returns the repeated layers of a model."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Enables activation checkpointing: stores only each layer's input and recomputes the rest in the backward pass.

    transformers checkpoints only modules in training mode. So the layers are set to training mode, but not their
    submodules: dropout stays off, because training must compute the same policy as the sampler.
    """
    call: Any = model
    # Older releases of transformers have only `gradient_checkpointing_enable`.
    enable = getattr(call, "activation_checkpointing_enable", None) or call.gradient_checkpointing_enable
    enable()
    for layer in layers_of(model):
        layer.training = True


@contextmanager
def _only(head: Module, places: torch.Tensor) -> Iterator[None]:
    def pick(_: Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (given[0].flatten(0, 1)[places][None], *given[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()
