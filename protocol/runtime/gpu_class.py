"""Class of an NVIDIA GPU, the device of numerics classes on GPUs."""

from __future__ import annotations

LEAST_CAPABILITY = (8, 0)
"""Compute capability from which vLLM's batch-invariant kernels work."""


def gpu_class_of(capability: tuple[int, int]) -> str | None:
    """Returns the class of a compute capability, such as `sm_90`; None below `LEAST_CAPABILITY`."""
    major, minor = capability
    return f"sm_{major}{minor}" if capability >= LEAST_CAPABILITY else None
