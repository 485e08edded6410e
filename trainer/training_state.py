"""What training has at any moment, as tensors by name: weights, the optimisers' averages, the random generator.

Put back, the next step is the one that would have been. Sharded weights are gathered, and sharded again, so that a
state is the same whatever number of processes wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module
from torch.optim import Optimizer

_WEIGHT = "weight"
_STEP = "step"
_GENERATOR = "rng"


def training_tensors(model: Module, optimisers: Iterable[Optimizer]) -> dict[str, torch.Tensor]:
    """Gathers the state; nothing of it is shared with what goes on training.

    With sharded weights every process must call this, and each gets all of it.
    """
    kept = {_GENERATOR: torch.get_rng_state()}
    averages = {parameter: state for optimiser in optimisers for parameter, state in optimiser.state.items()}
    for name, weight in model.named_parameters():
        kept[f"{_WEIGHT}.{name}"] = whole(weight)
        for kind, value in averages.get(weight, {}).items():
            kept[f"{kind}.{name}"] = whole(value)
    return kept


def restore_training(kept: Mapping[str, torch.Tensor], model: Module, optimisers: Iterable[Optimizer]) -> None:
    """Puts a state back.

    Raises:
        KeyError: A weight is not in it.
        ValueError: A tensor has another shape.
    """
    averages: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in kept.items():
        kind, _, name = key.partition(".")
        if kind != _WEIGHT:
            averages.setdefault(name, {})[kind] = value
    parameters = dict(model.named_parameters())
    owners = {parameter: each for each in optimisers for group in each.param_groups for parameter in group["params"]}
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(_like(kept[f"{_WEIGHT}.{name}"], parameter))
            if parameter in owners:
                owners[parameter].state.pop(parameter, None)
            if name in averages:
                owners[parameter].state[parameter] = {
                    kind: value.clone() if kind == _STEP else _like(value, parameter).clone()
                    for kind, value in averages[name].items()
                }
    torch.set_rng_state(kept[_GENERATOR])


def whole(value: torch.Tensor) -> torch.Tensor:
    """A tensor's copy on the CPU, gathered if it is sharded."""
    full: Any = value.full_tensor() if isinstance(value, DTensor) else value
    copy: torch.Tensor = full.detach().to("cpu", copy=True).contiguous()
    return copy


def _like(value: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """A whole tensor where a parameter's own values are, and sharded as they are."""
    if value.shape != parameter.shape:
        raise ValueError(f"a tensor of {tuple(value.shape)} for a weight of {tuple(parameter.shape)}")
    if isinstance(parameter, DTensor):
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value.to(parameter.device)
