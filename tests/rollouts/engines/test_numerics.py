"""Which kernels a numerics class stands for, and what a machine offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protocol.errors import InvalidInput
from protocol.runtime.cpu_class import CPU_CLASSES
from rollouts.engines.opening import open_engine
from rollouts.engines.vllm import cpu_kernels, numerics
from rollouts.precision import Dtype, EngineName

ROOT = Path(__file__).parents[3]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def as_class(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Yields a patch for the processor's class; functions of torch are restored afterwards."""
    for name in cpu_kernels._DETECTIONS:
        if hasattr(torch.cpu, name):
            monkeypatch.setattr(torch.cpu, name, getattr(torch.cpu, name))
    return monkeypatch


def processor(patch: pytest.MonkeyPatch, own: str | None, *, aten: str = "AVX512") -> None:
    for module in (cpu_kernels, numerics):
        patch.setattr(module, "cpu_class", lambda: own)
    patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: aten)


def test_every_class_of_processors_has_kernels() -> None:
    assert list(cpu_kernels.KERNELS) == list(CPU_CLASSES)


@pytest.mark.parametrize(
    ("own", "offered"),
    [
        ("cpu-amx", ("cpu-amx", "cpu-avx512_bf16", "cpu-avx512", "cpu-avx2")),
        ("cpu-avx512", ("cpu-avx512", "cpu-avx2")),
        ("cpu-avx2", ("cpu-avx2",)),
        (None, ()),
    ],
)
def test_a_machine_reproduces_its_own_class_and_lower_ones(
    as_class: pytest.MonkeyPatch, own: str | None, offered: tuple[str, ...]
) -> None:
    processor(as_class, own)
    assert cpu_kernels.reproducible_classes() == offered


def test_the_environment_of_a_lower_class_limits_onednn_and_aten() -> None:
    assert cpu_kernels.environment_for("cpu-avx2") == {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    }
    assert cpu_kernels.environment_for("cpu-avx512_bf16")["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"


def test_vllm_sees_the_instruction_sets_of_the_chosen_class_only(as_class: pytest.MonkeyPatch) -> None:
    processor(as_class, "cpu-amx", aten="AVX2")
    as_class.setattr(os, "environ", dict(os.environ))
    cpu_kernels.limit_vllm("cpu-avx2")
    assert not torch.cpu._is_avx512_supported()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    processor(as_class, "cpu-amx", aten="AVX512")
    cpu_kernels.limit_vllm("cpu-avx512")
    assert torch.cpu._is_avx512_supported()
    assert not torch.cpu._is_avx512_bf16_supported()


def test_a_process_whose_torch_uses_another_instruction_set_is_refused(as_class: pytest.MonkeyPatch) -> None:
    processor(as_class, "cpu-avx512", aten="AVX512")
    with pytest.raises(InvalidInput, match="torch uses AVX512 in this process, but cpu-avx2 needs AVX2") as refused:
        cpu_kernels.limit_vllm("cpu-avx2")
    assert refused.value.hint == "start the process with ATEN_CPU_CAPABILITY=avx2"


def test_a_class_above_the_processor_is_refused(as_class: pytest.MonkeyPatch) -> None:
    processor(as_class, "cpu-avx2")
    for name in ("cpu-amx", "cpu-none"):
        with pytest.raises(InvalidInput, match=f"can't compute like {name}") as refused:
            numerics.check_device_class(CPU, name)
        assert refused.value.hint == "the classes of this machine: cpu-avx2"


def test_a_process_with_limited_torch_has_no_class_by_default(as_class: pytest.MonkeyPatch) -> None:
    processor(as_class, "cpu-avx512", aten="AVX512")
    assert numerics.own_device_class(CPU) == "cpu-avx512"
    processor(as_class, "cpu-avx512", aten="DEFAULT")
    assert numerics.own_device_class(CPU) is None, "the instruction set that torch uses counts, not the processor's"
    assert numerics.own_device_class(GPU) is None, "batch-invariant mode is slower, so a GPU's class is opt-in"


@pytest.mark.parametrize(
    ("device_class", "head_width", "most"),
    [
        ("cpu-avx2", 64, 1920),  # (128 KiB - 8 bytes * 16 queries * 64) / (4 bytes * 16 queries)
        ("cpu-avx512", 128, 1792),
        ("cpu-amx", 64, 896),
        ("sm_90", 64, None),
    ],
)
def test_rows_of_a_cpus_class_fit_in_the_tile_of_the_smallest_cache(
    device_class: str, head_width: int, most: int | None
) -> None:
    assert numerics.most_positions(device_class, head_width=head_width) == most


@pytest.mark.parametrize(
    ("heads", "tokens"), [(1, 8), (2, 4), (3, 8), (4, 2), (7, 8), (8, 1), (16, 1), (32, 1), (48, 8)]
)
def test_a_piece_fits_the_kernels_inner_loop_on_every_instruction_set(heads: int, tokens: int) -> None:
    assert numerics.tokens_per_piece(heads) == tokens
    for queries in (8, 16, 32):
        at_once = heads if queries % heads == 0 else 1
        assert tokens * at_once <= queries


def test_another_library_than_the_classs_is_detected(as_class: pytest.MonkeyPatch) -> None:
    as_class.setattr(numerics, "used_extension", lambda: "_C_AVX2")
    numerics.check_used(CPU, "cpu-avx2")
    with pytest.raises(InvalidInput, match="vLLM loaded _C_AVX2, but cpu-avx512 needs _C_AVX512"):
        numerics.check_used(CPU, "cpu-avx512")


@pytest.mark.parametrize(
    ("capability", "wanted", "why"),
    [
        ((9, 0), "sm_90", None),
        ((8, 0), "sm_80", None),
        ((7, 5), "sm_75", "compute capability 7.5, but vLLM's batch-invariant mode needs 8.0"),
        ((9, 0), "sm_80", "belongs to the class sm_90, not to sm_80"),
    ],
)
def test_a_gpu_has_the_class_of_its_compute_capability(
    as_class: pytest.MonkeyPatch, capability: tuple[int, int], wanted: str, why: str | None
) -> None:
    as_class.setattr(torch.version, "cuda", "13.0")
    as_class.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    as_class.setattr(os, "environ", dict(os.environ))
    if why is None:
        numerics.bind_process(GPU, wanted)
        assert os.environ["VLLM_BATCH_INVARIANT"] == "1"
        numerics.check_used(GPU, wanted)
        os.environ["VLLM_BATCH_INVARIANT"] = "0"
        with pytest.raises(InvalidInput, match="not in batch-invariant mode"):
            numerics.check_used(GPU, wanted)
    else:
        with pytest.raises(InvalidInput, match=why):
            numerics.bind_process(GPU, wanted)


def test_an_accelerator_of_another_maker_has_no_class(as_class: pytest.MonkeyPatch) -> None:
    as_class.setattr(torch.version, "cuda", None)
    with pytest.raises(InvalidInput, match="cuda has no numerics class"):
        numerics.gpu_class(GPU)


def test_the_installed_version_is_read_from_disk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service names the arithmetic in each answer, and reading the metadata takes milliseconds."""
    read: list[str] = []

    def version(name: str) -> str:
        read.append(name)
        return "0.32.0+cpu"

    monkeypatch.setattr("importlib.metadata.version", version)
    numerics.vllm_version.cache_clear()
    try:
        found = {str(numerics.arithmetic_of(Dtype.BFLOAT16, "cpu-avx2")) for _ in range(3)}
    finally:
        numerics.vllm_version.cache_clear()
    assert found == {"vllm-0.32.0/bfloat16/cpu-avx2"}
    assert read == ["vllm"]


def test_torch_has_no_classes() -> None:
    with pytest.raises(InvalidInput, match="the engine torch has no numerics classes"):
        open_engine(EngineName.TORCH, dtype=Dtype.BFLOAT16, device="cpu", device_class="cpu-avx2")


def test_a_task_restarts_with_the_environment_of_the_chosen_class() -> None:
    """Runs a process of its own, because ATen reads its variable once."""
    if "cpu-avx2" not in cpu_kernels.reproducible_classes():
        pytest.skip("this processor has no AVX2")
    program = (
        "import torch; from rollouts.engines.vllm.cpu_kernels import restart_as; restart_as('cpu-avx2'); "
        "import os; print(os.environ['ONEDNN_MAX_CPU_ISA'], torch.backends.cpu.get_cpu_capability())"
    )
    clean = {name: value for name, value in os.environ.items() if "CPU_" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=clean, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["AVX2", "AVX2"]
