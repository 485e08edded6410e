"""Engines and data types with which rollouts are generated."""

from __future__ import annotations

from enum import StrEnum


class EngineName(StrEnum):
    """Engines that a lease, a rollout file or a calibration can name."""

    TORCH = "torch"
    VLLM = "vllm"


class Dtype(StrEnum):
    """Data type of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def arithmetic_name(engine: EngineName, dtype: Dtype) -> str:
    """Returns the name of an engine and data type as recipes spell it, e.g. `torch/float32`."""
    return f"{engine.value}/{dtype.value}"
