"""The fused noise kernel computes the noise of `noise_torch`, and is used only where it runs and agrees.

Most of these tests need triton, which is no part of the test environment because it takes 700 MB. To run them without a
GPU, make an environment on top of it (docs/engines.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from rollouts.sampling import noise as noise_module
from rollouts.sampling.noise import Keys, fused_kernel, noise, noise_numpy, noise_torch
from tests.rollouts.ptx import NVRTC, cuda_logarithm, reciprocal_formulas
from tests.rollouts.triton_interpreter import CASES, keys_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
KERNEL_MODULE = "rollouts.sampling.noise_triton"

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Noise of every case, computed by the kernel in Triton's interpreter."""
    path = tmp_path_factory.mktemp("interpreter") / "noise.npz"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.rollouts.triton_interpreter", str(path)]
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], check=True)
    with np.load(path) as found:
        return dict(found)


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_the_interpreted_kernel_computes_the_noise_of_numpy_and_torch_to_the_bit(
    interpreted: dict[str, np.ndarray], name: str
) -> None:
    case, found = CASES[name], interpreted[name]
    assert found.shape == (len(case.keys), case.vocabulary)
    for expected in (
        noise_numpy(case.keys, case.vocabulary),
        noise_torch(case.keys, case.vocabulary, device=CPU).numpy(),
    ):
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """PTX of the kernel for GPUs of several generations."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("with TRITON_INTERPRET=1, triton does not compile")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    module = import_module(KERNEL_MODULE)
    source = compiler.ASTSource(
        fn=module.noise_kernel,
        signature={"keys": "*i64", "out": "*fp32", "vocabulary": "i32", "counters": "constexpr"},
        constexprs={"counters": module.COUNTERS},
    )
    options = {"enable_fp_fusion": module.FUSED}
    return {
        f"sm_{number}": compiler.compile(source, target=target("cuda", number, 32), options=options).asm["ptx"]
        for number in (75, 80, 86, 89, 90, 100, 120)
    }


def test_the_compiled_kernel_has_the_logarithm_of_cuda_with_the_same_contractions(compiled: dict[str, str]) -> None:
    expected = cuda_logarithm(fused=True)
    if expected is None:
        pytest.skip(f"{NVRTC} is not installed")
    assert len(reciprocal_formulas(expected)) >= 25
    for ptx in compiled.values():
        assert reciprocal_formulas(ptx) == reciprocal_formulas(expected)


def test_cudas_logarithm_without_contractions_is_another_one() -> None:
    """The reason why the kernel is not compiled with `enable_fp_fusion=False`: torch's kernels are contracted."""
    fused, separate = cuda_logarithm(fused=True), cuda_logarithm(fused=False)
    if fused is None or separate is None:
        pytest.skip(f"{NVRTC} is not installed")
    assert reciprocal_formulas(fused) != reciprocal_formulas(separate)


@pytest.mark.needs_gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
@needs_triton
@pytest.mark.parametrize(
    ("rows", "vocabulary"),
    [(1, 1), (7, 63), (7, 64), (7, 1000), (7, 49_152), (64, 152_064), (3, 128_257), (70_000, 5)],
)
def test_the_kernel_on_a_gpu_computes_the_noise_of_torch_to_the_bit(rows: int, vocabulary: int) -> None:
    kernel = fused_kernel(CUDA)
    assert kernel is not None, "see the log for why it was not used"
    keys = keys_of(rows)
    found, expected = (form(keys, vocabulary, device=CUDA) for form in (kernel, noise_torch))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(noise(keys, vocabulary, device=CUDA), found)


@pytest.mark.needs_gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
@needs_triton
def test_the_logarithm_on_a_gpu_is_torchs_to_the_bit() -> None:
    """The arguments of both logarithms: 2^24 words, and the negated logarithms of these words."""
    logarithm = import_module("tests.rollouts.triton_logarithm").logarithm_triton
    generator = torch.Generator(CUDA).manual_seed(1)
    inner = (torch.randint(1 << 32, (1 << 24,), generator=generator, device=CUDA).double() + 0.5) * 2.0**-32
    for values in (inner, -torch.log(inner)):
        assert torch.equal(logarithm(values).view(torch.int64), torch.log(values).view(torch.int64))


def test_formulas_include_constants_and_contractions_but_no_registers_and_no_order() -> None:
    one = "add.f64 %a, %x, 0d1;\nadd.f64 %b, %x, 0d2;\nrcp.approx.ftz.f64 %r, %a;\nfma.rn.f64 %s, %r, %b, %b;\n"
    other = "add.f64 %4, 0d2, %9;\nadd.f64 %3, %9, 0d1;\nrcp.approx.ftz.f64 %1, %3;\nfma.rn.f64 %2, %4, %1, %4;\n"
    assert len(reciprocal_formulas(one)) == 2
    assert reciprocal_formulas(one) == reciprocal_formulas(other)
    assert reciprocal_formulas(one) != reciprocal_formulas(one.replace("0d2", "0d3"))
    parts = one.replace("fma.rn.f64 %s, %r, %b, %b", "mul.f64 %m, %r, %b;\nadd.f64 %s, %m, %b")
    assert reciprocal_formulas(one) != reciprocal_formulas(parts)
    assert reciprocal_formulas("add.f64 %a, %x, 0d1;") == set()


class Kernel(ModuleType):
    """Replaces `noise_triton` by torch's form on the CPU, and counts its calls.

    Args:
        error: Raised by each call.
        off_by: Added to the noise.
    """

    def __init__(self, *, error: Exception | None = None, off_by: float = 0.0) -> None:
        super().__init__(KERNEL_MODULE)
        self.calls, self.error, self.off_by = 0, error, off_by

    def noise_triton(self, keys: Keys, vocabulary: int, *, device: torch.device) -> torch.Tensor:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return noise_torch(keys, vocabulary, device=CPU) + self.off_by


@pytest.fixture
def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes torch's form compute on the CPU, and pretends that triton is installed."""
    monkeypatch.setattr(noise_module, "noise_torch", lambda keys, size, device: noise_torch(keys, size, device=CPU))
    monkeypatch.setattr(noise_module, "find_spec", lambda name: name)
    fused_kernel.cache_clear()
    yield
    fused_kernel.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> Kernel:
    monkeypatch.setitem(sys.modules, KERNEL_MODULE, kernel)
    return kernel


def noise_on(device: torch.device) -> torch.Tensor:
    return noise(keys_of(2), 100, device=device)


EXPECTED = noise_numpy(keys_of(2), 100)


@pytest.mark.usefixtures("as_if_on_a_gpu")
def test_a_kernel_that_agrees_with_torch_is_used_and_tried_once_per_device(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = use(monkeypatch, Kernel())
    for calls in (3, 4):  # two trials, and one call each
        assert np.array_equal(noise_on(CUDA).numpy(), EXPECTED)
        assert kernel.calls == calls
    noise_on(torch.device("cuda", 1))
    assert kernel.calls == 7


@pytest.mark.usefixtures("as_if_on_a_gpu")
@pytest.mark.parametrize(
    ("kernel", "event"),
    [
        (Kernel(error=RuntimeError("Failed to find C compiler")), "noise-kernel-failed"),
        (Kernel(off_by=1e-3), "noise-kernel-differs"),
    ],
)
def test_a_kernel_that_fails_or_differs_is_replaced_by_torchs_form_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, event: str
) -> None:
    use(monkeypatch, kernel)
    with capture_logs() as lines:
        for _ in range(2):
            assert np.array_equal(noise_on(CUDA).numpy(), EXPECTED)
    assert [(line["event"], line["device"]) for line in lines] == [(event, "cuda")]
    assert kernel.calls <= 2


@pytest.mark.usefixtures("as_if_on_a_gpu")
def test_a_trial_without_memory_is_an_error_and_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = use(monkeypatch, Kernel(error=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        noise_on(CUDA)
    kernel.error = None
    assert fused_kernel(CUDA) is not None


@pytest.mark.usefixtures("as_if_on_a_gpu")
def test_other_devices_and_environments_without_triton_compute_noise_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = use(monkeypatch, Kernel())
    assert fused_kernel(torch.device("xpu")) is None
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert fused_kernel(CUDA) is None, "AMD's compiler has another logarithm"
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(noise_module, "find_spec", lambda name: None)
    fused_kernel.cache_clear()
    assert np.array_equal(noise_on(CUDA).numpy(), EXPECTED)
    assert kernel.calls == 0
