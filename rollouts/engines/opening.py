"""An engine by its name, so that only what is used is loaded."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch

from protocol.errors import InvalidInput, NotFound
from protocol.runtime.extras import installation
from rollouts.engines.interface import (
    Engine,
)
from rollouts.precision import (
    Dtype,
    EngineName,
)

_CLASSES = {
    EngineName.TORCH: ("rollouts.engines.torch.engine", "TorchEngine"),
    EngineName.VLLM: ("rollouts.engines.vllm.engine", "VllmEngine"),
}


def open_engine(name: EngineName, *, dtype: Dtype, device: str | None = None, max_batch: int = 64) -> Engine:
    """Returns an engine that holds nothing yet.

    Args:
        name: Which one.
        dtype: What it computes in.
        device: As torch names it: cpu, cuda, cuda:1; None for an accelerator if there is one, else the CPU.
        max_batch: The most answers that grow at once.

    Raises:
        InvalidInput: There is no such device.
        NotFound: What the engine needs is not installed here.
    """
    try:
        where = None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InvalidInput(f"{device!r} is no device", hint="give cpu, cuda or cuda:NUMBER") from error
    return engine_class(name)(dtype=dtype, device=where, max_batch=max_batch)


def engine_class(name: EngineName) -> Callable[..., Engine]:
    """Returns what makes the engine: that it is installed can be known long before it is opened.

    Raises:
        NotFound: What the engine needs is not installed here.
    """
    module, kind = _CLASSES[name]
    try:
        made: Callable[..., Engine] = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        raise NotFound(
            f"the {name.value} engine can't be loaded: there is no module {error.name}",
            hint=f"{installation('vllm' if name is EngineName.VLLM else 'rollouts')}; or choose another engine",
        ) from error
    return made
