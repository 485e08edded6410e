"""Optimisers: AdamW alone, or Muon for matrices with AdamW for all other weights."""

from __future__ import annotations

from typing import Any

from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel

from trainer.learning.settings import LearningOptimiser, OptimiserKind


def make_optimisers(model: PreTrainedModel, settings: LearningOptimiser) -> list[Optimizer]:
    """Creates the optimisers of a model; each weight belongs to exactly one of them.

    Muon updates matrices that map hidden states to hidden states (Jordan et al., "Muon"). AdamW updates embeddings and
    the output layer, because each of their rows stands for a token.
    """
    if settings.kind == OptimiserKind.ADAMW:
        return [_adamw(list(model.parameters()), settings)]
    call: Any = model  # transformers annotates only some of its methods
    outside = {
        id(parameter)
        for layer in (call.get_input_embeddings(), call.get_output_embeddings())
        if layer is not None
        for parameter in layer.parameters()
    }
    inner = [weight for weight in model.parameters() if weight.ndim == 2 and id(weight) not in outside]
    moved = {id(weight) for weight in inner}
    muon = Muon(
        inner,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [muon, _adamw([weight for weight in model.parameters() if id(weight) not in moved], settings)]


def set_learning_rate(optimisers: list[Optimizer], rate: float) -> None:
    """Sets the learning rate of the next step."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = rate


def _adamw(weights: list[Parameter], settings: LearningOptimiser) -> AdamW:
    on_cpu = all(weight.device.type == "cpu" for weight in weights)
    return AdamW(
        weights,
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=on_cpu or None,
    )
