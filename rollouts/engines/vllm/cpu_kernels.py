"""Kernels that vLLM uses on each class of processor, and how a process is bound to them.

Three libraries choose kernels by instruction set: vLLM's own extension, oneDNN (matrix products), and ATen (the other
operations of torch). A numerics class fixes the choices of all three. A machine can also reproduce the arithmetic of a
lower class: environment variables limit oneDNN and ATen, and `limit_vllm` limits vLLM.

This module does not load vLLM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from protocol.errors import InvalidInput
from protocol.runtime.cpu_class import CPU_CLASSES, cpu_class


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernels:
    """Kernels of one class of processors.

    Args:
        extension: vLLM's library, without its suffix.
        onednn: oneDNN's instruction set, as `ONEDNN_MAX_CPU_ISA` spells it.
        aten: ATen's instruction set, as `torch.backends.cpu.get_cpu_capability` spells it.
    """

    extension: str
    onednn: str
    aten: str


KERNELS: Mapping[str, CpuKernels] = {
    "cpu-amx": CpuKernels(extension="_C", onednn="AVX512_CORE_AMX", aten="AVX512"),
    "cpu-avx512_bf16": CpuKernels(extension="_C", onednn="AVX512_CORE_BF16", aten="AVX512"),
    "cpu-avx512": CpuKernels(extension="_C_AVX512", onednn="AVX512_CORE", aten="AVX512"),
    "cpu-avx2": CpuKernels(extension="_C_AVX2", onednn="AVX2", aten="AVX2"),
}
"""The kernels of each class in `protocol.runtime.cpu_class`, highest class first.

Even the highest class states an instruction set for oneDNN. Otherwise oneDNN would use the further instruction sets of
newer processors, such as AVX512_CORE_FP16."""

_DETECTIONS = {
    "_is_amx_tile_supported": frozenset({"cpu-amx"}),
    "_is_avx512_bf16_supported": frozenset({"cpu-amx", "cpu-avx512_bf16"}),
    "_is_avx512_supported": frozenset({"cpu-amx", "cpu-avx512_bf16", "cpu-avx512"}),
}
"""Functions of `torch.cpu` by which vLLM chooses its extension and its attention kernel. The value of each function is
the set of classes for which it returns true."""


def reproducible_classes() -> tuple[str, ...]:
    """Returns the classes whose arithmetic this machine can reproduce, highest first.

    The result is empty if the processor belongs to no class.
    """
    own = cpu_class()
    names = list(CPU_CLASSES)
    return () if own is None else tuple(names[names.index(own) :])


def check_class(name: str) -> None:
    """Checks that this machine can reproduce the arithmetic of a class.

    Raises:
        InvalidInput: The class is unknown, or the processor lacks its instruction sets.
    """
    offered = reproducible_classes()
    if name not in offered:
        here = ", ".join(offered) or "none"
        raise InvalidInput(f"this machine can't compute like {name}", hint=f"the classes of this machine: {here}")


def environment_for(name: str) -> dict[str, str]:
    """Returns the environment variables with which a process reproduces a class."""
    kernels = KERNELS[name]
    return {
        "ONEDNN_MAX_CPU_ISA": kernels.onednn,
        "DNNL_MAX_CPU_ISA": kernels.onednn,  # the older name, which an operator may have set
        "ATEN_CPU_CAPABILITY": kernels.aten.lower(),
    }


def restart_as(name: str) -> None:
    """Restarts this process with the environment of a class, unless it has that environment already.

    ATen reads its variable once, before this program's first statement. So a change needs a new process image.

    Raises:
        InvalidInput: This machine can't compute like the class.
    """
    check_class(name)
    wanted = environment_for(name)
    if any(os.environ.get(variable) != value for variable, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **wanted})  # noqa: S606


def limit_vllm(name: str) -> None:
    """Binds this process to the kernels of a class, before vLLM is first imported.

    Raises:
        InvalidInput: This machine can't compute like the class, or ATen already uses another instruction set.
    """
    check_class(name)
    used = torch.backends.cpu.get_cpu_capability()
    if used != KERNELS[name].aten:
        raise InvalidInput(
            f"torch uses {used} in this process, but {name} needs {KERNELS[name].aten}",
            hint=f"start the process with ATEN_CPU_CAPABILITY={KERNELS[name].aten.lower()}",
        )
    os.environ.update(environment_for(name))
    for function, classes in _DETECTIONS.items():
        if hasattr(torch.cpu, function):
            setattr(torch.cpu, function, _answer(name in classes))


def _answer(value: bool) -> object:
    return lambda: value


def used_extension() -> str | None:
    """Returns the name of vLLM's library in this process, without its suffix; None before it is loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.rpartition(" ")[2])
        if path.parent.name == "vllm" and path.name.startswith("_C"):
            return path.name.split(".")[0]
    return None
