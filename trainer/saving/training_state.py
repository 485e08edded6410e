"""Training state as named tensors: weights, optimiser averages, random generator.

After the state is restored, the next step has the same result as without the interruption. Sharded weights are gathered
when saved and sharded again when restored, so the state does not depend on the number of processes.
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


def training_tensors(model: Module, optimisers: Iterable[Optimizer], *, keep: bool = True) -> dict[str, torch.Tensor]:
    """Returns the state without copying: the tensors are valid until the next optimiser step.

    A copy would double the memory of weights and averages. Sharded tensors are gathered, so every process must call
    this function. They are gathered one by one, so that a process that passes `keep=False` never holds more than one
    gathered tensor; such a process gets an empty dict.
    """
    kept = {_GENERATOR: torch.get_rng_state()}
    averages = {parameter: state for optimiser in optimisers for parameter, state in optimiser.state.items()}
    for name, weight in model.named_parameters():
        kept[f"{_WEIGHT}.{name}"] = _gathered(weight, keep=keep)
        for kind, value in averages.get(weight, {}).items():
            kept[f"{kind}.{name}"] = _gathered(value, keep=keep)
    return kept if keep else {}


def stored_weights(model: Module, *, dtype: torch.dtype, keep: bool = True) -> dict[str, torch.Tensor]:
    """Gathers the tensors of a version (weights and persistent buffers) on the CPU, floating-point ones as `dtype`.

    Every process must call this function, as for `training_tensors`. A process that passes `keep=False` gets an empty
    dict.
    """
    kept: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:  # tied weights are stored under their first name
            seen.add(id(tensor))
            kept[name] = _whole(tensor, dtype=dtype if tensor.is_floating_point() else tensor.dtype, keep=keep)
    return kept if keep else {}


def restore_training(kept: Mapping[str, torch.Tensor], model: Module, optimisers: Iterable[Optimizer]) -> None:
    """Restores a state.

    Raises:
        KeyError: A weight is missing in the state.
        ValueError: A tensor has a different shape.
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


def _gathered(value: torch.Tensor, *, keep: bool) -> torch.Tensor:
    """Returns the tensor itself, or a CPU copy of a sharded tensor.

    Returns an empty tensor if `keep` is False.
    """
    if isinstance(value, DTensor):
        return _whole(value, dtype=value.dtype, keep=keep)
    return value.detach() if keep else torch.empty(0)


def _whole(value: torch.Tensor, *, dtype: torch.dtype, keep: bool) -> torch.Tensor:
    """Returns a CPU copy of the tensor, gathered if it is sharded.

    Returns an empty tensor if `keep` is False.
    """
    full: Any = value.full_tensor() if isinstance(value, DTensor) else value
    if not keep:
        return torch.empty(0)
    copy: torch.Tensor = full.detach().to("cpu", dtype=dtype, copy=True).contiguous()
    return copy


def _like(value: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the full tensor on the parameter's device, sharded like the parameter."""
    if value.shape != parameter.shape:
        raise ValueError(
            f"a tensor of shape {tuple(value.shape)} does not fit a weight of shape {tuple(parameter.shape)}"
        )
    if isinstance(parameter, DTensor):
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value.to(parameter.device)
