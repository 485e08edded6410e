"""Rows through a model, and out come the logits of answers: only those are computed.

Where the rows of states reach the output layer, a hook picks the answers' own. So whatever a model does with its logits
afterwards (scaling, soft caps) is done as it would be.
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
    """The logits that the answers' tokens were drawn from, [N, V], in the order of `rows.answers`.

    Args:
        model: Any causal model of transformers.
        rows: What goes through it.
        dtype: What is computed in; weights stay what they are.
    """
    call: Any = model  # transformers annotates its methods in parts only
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
    """The layers that a model repeats."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keeps a layer's input only and computes the rest again when gradients are taken.

    transformers does so in modules that are in training mode. The layers are told that they are; what is in them isn't,
    so that dropout stays off: the policy that learns is the one that generated.
    """
    call: Any = model
    enable = (
        getattr(call, "activation_checkpointing_enable", None) or call.gradient_checkpointing_enable
    )  # its old name
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
