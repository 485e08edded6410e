"""Class of this machine's processor, the device of numerics classes on CPUs.

vLLM and oneDNN choose their kernels by these instruction sets, so machines of one class compute the same bits.
"""

from __future__ import annotations

import platform
from collections.abc import Set
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_AVX512_BF16 = _AVX512 | {"avx512_bf16"}
_AMX = _AVX512_BF16 | {"amx_tile", "amx_bf16"}

CPU_CLASSES = {
    "cpu-amx": _AMX,
    "cpu-avx512_bf16": _AVX512_BF16,
    "cpu-avx512": _AVX512,
    "cpu-avx2": _AVX2,
}
"""Flags that each class needs, highest class first. A machine supports its own class and all classes below it."""


def cpu_class() -> str | None:
    """Returns the class of this machine's processor, such as `cpu-avx2`.

    Returns None on machines that are not Linux on x86-64, and on processors without AVX2.
    """
    if platform.machine() not in {"x86_64", "AMD64"}:
        return None
    try:
        text = CPUINFO.read_text(errors="replace")
    except OSError:
        return None
    return class_of(cpu_flags(text))


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Returns the flags that all processors in the text of `/proc/cpuinfo` have; threads may run on any of them."""
    found: list[frozenset[str]] = []
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            found.append(frozenset(value.split()))
    return frozenset.intersection(*found) if found else frozenset()


def class_of(flags: Set[str]) -> str | None:
    """Returns the highest class whose flags are all present; None if there is none."""
    return next((name for name, needed in CPU_CLASSES.items() if needed <= flags), None)
