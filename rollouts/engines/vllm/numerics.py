"""Numerics class of a vLLM engine: detection before vLLM is loaded, binding of the process, check afterwards.

Within a class vLLM computes the same bits in every batch, so that its prefill reproduces its decoding
(docs/decisions/0082-numerics-classes.md). On a CPU vLLM needs no special mode for this. On a GPU it needs
batch-invariant mode and compute capability 8.0 or higher.

This module does not load vLLM.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata

import torch

from protocol.errors import InvalidInput, NotFound
from protocol.runtime.cpu_class import cpu_class
from protocol.runtime.extras import installation
from protocol.runtime.gpu_class import LEAST_CAPABILITY, gpu_class_of
from rollouts.engines.vllm.cpu_kernels import KERNELS, check_class, limit_vllm, used_extension
from rollouts.precision import Arithmetic, Dtype, EngineName

NO_CLASS = "none"
"""Requests that an engine computes in no numerics class, although its device has one."""
_BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
_SPLIT = "VLLM_CPU_ATTN_SPLIT_KV"
"""If 1, which is vLLM's default, decoding with several threads splits long sums, but prefill does not split them. So a
class sets the variable to 0."""
_CPU_VARIABLES = "VLLM_CPU_"
_KEPT = frozenset({"VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_NUM_OF_RESERVED_CPU"})
"""Environment variables of vLLM on a CPU that change no results. `bind_process` removes the other `VLLM_CPU_…`
variables, which an operator may have set."""
_LEAST_CACHE = (256 << 10) // 2
"""Bytes that vLLM's attention kernel uses of the smallest second-level cache: half of 256 KiB, which is also vLLM's
default if a virtual machine hides the size."""
_QUERIES = {"cpu-amx": 32}
_QUERIES_ELSEWHERE = 16
"""Queries (heads of one token) that the kernel processes at once, at most."""
_LEAST_QUERIES, _MOST_QUERIES = 8, 32
"""Queries that the kernel processes at once on the lowest and on the highest instruction set; powers of two."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@cache
def vllm_version() -> str:
    """Returns the public version of the installed vLLM, such as `0.32.0`; reads the package's metadata once.

    Raises:
        NotFound: vLLM is not installed in this environment.
    """
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    raise NotFound("vLLM is not installed in this environment", hint=installation("vllm"))


def gpu_class(device: torch.device) -> str:
    """Returns the class of a GPU, such as `sm_90`.

    Raises:
        InvalidInput: The device is no NVIDIA GPU, or its compute capability is below `LEAST_CAPABILITY`.
    """
    if device.type != "cuda" or torch.version.cuda is None:
        raise InvalidInput(f"{device} has no numerics class", hint="use a CPU or an NVIDIA GPU")
    major, minor = torch.cuda.get_device_capability(device)
    if (found := gpu_class_of((major, minor))) is None:
        least = ".".join(map(str, LEAST_CAPABILITY))
        raise InvalidInput(
            f"{device} has compute capability {major}.{minor}, but vLLM's batch-invariant mode needs {least}",
            hint="use a newer GPU, or recipes that accept vllm/bfloat16 without a class",
        )
    return found


def own_device_class(device: torch.device) -> str | None:
    """Returns the device class in which this process computes by default; None if there is none.

    A GPU has no class by default, because batch-invariant mode slows generation down.
    """
    if device.type != "cpu":
        return None
    own = cpu_class()
    return own if own is not None and torch.backends.cpu.get_cpu_capability() == KERNELS[own].aten else None


def check_device_class(device: torch.device, name: str) -> None:
    """Checks that a device can reproduce the arithmetic of a class.

    Raises:
        InvalidInput: The device has another class, or none.
    """
    if device.type == "cpu":
        check_class(name)
    elif (own := gpu_class(device)) != name:
        raise InvalidInput(f"{device} belongs to the class {own}, not to {name}", hint=f"request {own}")


def most_positions(device_class: str, *, head_width: int) -> int | None:
    """Returns the maximum tokens of prompt and answer together for which a class has reproducible bits.

    None means that there is no bound. On a CPU vLLM's attention sums over the earlier positions of a token in tiles
    of n positions. n follows from the processor's cache: for q queries, the queries and partial sums (8 · q ·
    `head_width` bytes) and the float32 scores (4 · q · n bytes) must fit into half of it. Machines with different
    caches have different tiles, so they agree only on rows within the smallest tile (vLLM 0.32,
    `csrc/cpu/cpu_attn_impl.hpp`, `calcu_tile_size_with_constant_q`).

    Args:
        device_class: The device class, such as `cpu-avx2`.
        head_width: Values of one attention head of the model.
    """
    if not device_class.startswith("cpu-"):
        return None
    queries = _QUERIES.get(device_class, _QUERIES_ELSEWHERE)
    return (_LEAST_CACHE - 8 * queries * head_width) // (4 * queries)


def tokens_per_piece(heads: int) -> int:
    """Returns how many tokens of a sequence vLLM's attention kernel computes with the tiles of decoding.

    The kernel sizes tiles for the queries that it processes at once, whether a sequence has so many or only one. If
    that number is a multiple of the heads that share a key, it processes all of a token's heads together; otherwise
    one.

    Args:
        heads: Heads of a token that share a key.
    """
    if _LEAST_QUERIES % heads == 0:
        return _LEAST_QUERIES // heads
    return 1 if _MOST_QUERIES % heads == 0 else _LEAST_QUERIES


def arithmetic_of(dtype: Dtype, device_class: str) -> Arithmetic:
    """Returns the numerics class of the installed vLLM with this data type and device class.

    Raises:
        NotFound: vLLM is not installed in this environment.
    """
    return Arithmetic(engine=EngineName.VLLM, dtype=dtype, version=vllm_version(), device=device_class)


def bind_process(device: torch.device, device_class: str) -> None:
    """Binds this process to the kernels of a class, before vLLM is first imported.

    Raises:
        InvalidInput: The device has another class, or the process already uses other kernels.
    """
    check_device_class(device, device_class)
    if device.type == "cpu":
        for name in [name for name in os.environ if name.startswith(_CPU_VARIABLES)]:
            if name not in _KEPT:
                del os.environ[name]
        os.environ[_SPLIT] = "0"
        limit_vllm(device_class)
    else:
        os.environ[_BATCH_INVARIANT] = "1"


def check_used(device: torch.device, device_class: str) -> None:
    """Checks the kernels that vLLM has loaded in this process.

    Raises:
        InvalidInput: vLLM uses other kernels than those of the class.
    """
    if device.type == "cpu":
        used, wanted = used_extension(), KERNELS[device_class].extension
        if used != wanted:
            raise InvalidInput(f"vLLM loaded {used}, but {device_class} needs {wanted}", hint="install vllm-cpu again")
    elif os.environ.get(_BATCH_INVARIANT) != "1":
        raise InvalidInput(f"vLLM is not in batch-invariant mode, which {device_class} needs")
