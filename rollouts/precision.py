"""Engines and data types that rollouts are generated with."""

from __future__ import annotations

from enum import StrEnum


class EngineName(StrEnum):
    """The engines that there are; a lease, a file and a calibration name one."""

    TORCH = "torch"
    VLLM = "vllm"


class Dtype(StrEnum):
    """What weights and activations are computed in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def arithmetic_name(engine: EngineName, dtype: Dtype) -> str:
    """An engine in a type, as recipes and people name it: `torch/float32`."""
    return f"{engine.value}/{dtype.value}"
