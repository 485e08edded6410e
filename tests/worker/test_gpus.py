"""GPUs as NVML reports them; NVML's functions are replaced, because most machines have no GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from worker.machine import gpus


def test_gpus_are_listed_with_the_classes_of_those_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = [(9, 0), (7, 5), (9, 0), None]

    def capability(index: int) -> tuple[int, int]:
        found = capabilities[index]
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return found

    for name, value in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(capabilities),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: b"NVIDIA H100",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        "nvmlDeviceGetCudaComputeCapability": capability,
        "nvmlSystemGetDriverVersion": lambda: "570",
    }.items():
        monkeypatch.setattr(pynvml, name, value)
    found = gpus.read_gpus()
    assert [one.gpu.index for one in found.gpus] == [0, 1, 2]
    assert found.classes == ("sm_90",)
    assert found.error.startswith("GPU 3 does not answer")
