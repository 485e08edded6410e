"""Opens engines by name, so that only the needed engine is imported."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from protocol.errors import InvalidInput, NotFound
from protocol.runtime.extras import installation
from rollouts.engines.interface import SessionEngine
from rollouts.models.devices import find_device
from rollouts.precision import Dtype, EngineName

_CLASSES = {
    EngineName.TORCH: ("rollouts.engines.torch.engine", "TorchEngine"),
    EngineName.VLLM: ("rollouts.engines.vllm.engine", "VllmEngine"),
}


def open_engine(
    name: EngineName,
    *,
    dtype: Dtype,
    device: str | None = None,
    max_batch: int = 64,
    device_class: str | None = None,
) -> SessionEngine:
    """Returns an engine without weights.

    Args:
        name: The engine.
        dtype: Data type of the computation.
        device: torch device name: cpu, cuda, cuda:1; None for an accelerator if there is one, else the CPU.
        max_batch: Maximum answers in progress.
        device_class: Class of device whose arithmetic the engine reproduces, such as `cpu-avx2` (see numerics class in
            the glossary); None for the engine's default.

    Raises:
        InvalidInput: The device name is invalid, this machine has no such device, or the engine can't reproduce the
            arithmetic of the class.
        NotFound: A package that the engine needs is not installed.
    """
    where = None if device is None else find_device(device)
    options: dict[str, Any] = {} if device_class is None else {"device_class": device_class}
    if options and name is not EngineName.VLLM:
        raise InvalidInput(f"the engine {name.value} has no numerics classes", hint="use the engine vllm")
    return engine_class(name)(dtype=dtype, device=where, max_batch=max_batch, **options)


def engine_class(name: EngineName) -> Callable[..., SessionEngine]:
    """Returns the engine's class; also tests early whether the engine is installed.

    Raises:
        NotFound: A package that the engine needs is not installed.
    """
    module, kind = _CLASSES[name]
    try:
        made: Callable[..., SessionEngine] = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        raise NotFound(
            f"the {name.value} engine can't be loaded: there is no module {error.name}",
            hint=f"{installation('vllm' if name is EngineName.VLLM else 'rollouts')}; or choose another engine",
        ) from error
    return made
