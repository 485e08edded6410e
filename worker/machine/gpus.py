"""Reads the GPUs of this machine through NVML.

A machine without an NVIDIA driver has no GPUs; this is not an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

from protocol.runtime.gpu_class import gpu_class_of
from protocol.wire.nodes import Gpu
from worker.tasks.container_spec import InstalledGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """GPUs that NVML reports.

    Args:
        gpus: GPUs that answer; they may be of different models.
        driver: Version of the NVIDIA driver; None if there is none.
        error: Errors of GPUs or driver; empty if there are none.
        classes: Device classes of the GPUs, such as `sm_90`, without those of GPUs that are too old for a class.
    """

    gpus: tuple[InstalledGpu, ...] = ()
    driver: str | None = None
    error: str = ""
    classes: tuple[str, ...] = ()


def read_gpus() -> GpuInventory:
    """Reads GPUs, their memory and the driver version.

    A GPU that does not answer is reported in `error`.
    """
    try:
        with _nvml():
            found, silent, classes = [], [], set()
            for index in range(pynvml.nvmlDeviceGetCount()):
                try:
                    classes.add(_class_of(index))
                    found.append(_describe(index))
                except pynvml.NVMLError as error:
                    silent.append(f"GPU {index} does not answer: {error}")
            return GpuInventory(
                gpus=tuple(found),
                driver=_text(pynvml.nvmlSystemGetDriverVersion()),
                error="; ".join(silent),
                classes=tuple(sorted(filter(None, classes))),
            )
    except pynvml.NVMLError as error:
        absent = isinstance(error, pynvml.NVMLError_LibraryNotFound | pynvml.NVMLError_DriverNotLoaded)
        return GpuInventory(error="" if absent else f"NVML: {error}")


def read_gpu_load() -> Mapping[str, float]:
    """Returns the utilisation (0 to 1) and used memory (bytes) of each GPU.

    The result is empty without GPUs.
    """
    gauges: dict[str, float] = {}
    try:
        with _nvml():
            for index in range(min(pynvml.nvmlDeviceGetCount(), 8)):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gauges[f"gpu{index}.busy"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
                gauges[f"gpu{index}.memory-used-bytes"] = float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    except pynvml.NVMLError:
        return gauges
    return gauges


def _describe(index: int) -> InstalledGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = Gpu(
        index=index,
        model=_text(pynvml.nvmlDeviceGetName(handle))[:200],
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )
    return InstalledGpu(gpu=gpu, uuid=_text(pynvml.nvmlDeviceGetUUID(handle)))


def _class_of(index: int) -> str | None:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(index))
    return gpu_class_of((int(major), int(minor)))


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Decodes a text, which older NVML bindings return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
