"""Class of a processor from its flags."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from protocol.runtime import cpu_class as module
from protocol.runtime.cpu_class import CPU_CLASSES, class_of, cpu_class, cpu_flags
from rollouts.precision import Arithmetic

AVX2 = "fpu sse2 avx avx2 fma"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl"
BF16 = f"{AVX512} avx512_bf16"
AMX = f"{BF16} amx_tile amx_bf16 amx_int8"

CASES = [
    ("", None),
    ("fpu sse2 avx", None),
    ("avx avx2", None),  # no fused multiply-add
    (AVX2, "cpu-avx2"),
    (f"{AVX2} avx_vnni", "cpu-avx2"),
    (f"{AVX2} avx512f", "cpu-avx2"),  # Xeon Phi has no avx512bw
    (f"{AVX2} avx512_bf16", "cpu-avx2"),
    (AVX512, "cpu-avx512"),
    (f"{AVX512} avx512_vnni", "cpu-avx512"),
    (f"{AVX512} amx_tile amx_bf16", "cpu-avx512"),  # a virtual machine may hide avx512_bf16
    (BF16, "cpu-avx512_bf16"),
    (f"{BF16} amx_tile", "cpu-avx512_bf16"),
    (AMX, "cpu-amx"),
]


@pytest.mark.parametrize(("flags", "expected"), CASES)
def test_the_class_is_the_highest_with_all_flags(flags: str, expected: str | None) -> None:
    assert class_of(frozenset(flags.split())) == expected


def test_flags_are_those_of_all_processors() -> None:
    text = f"processor\t: 0\nflags\t\t: {BF16}\nbugs\t\t: x\n\nprocessor\t: 1\nflags\t\t: {AVX2}\nvmx flags\t: ept\n"
    assert cpu_flags(text) == set(AVX2.split())
    assert cpu_flags("Features\t: asimd\n") == frozenset()


@pytest.mark.parametrize(
    ("machine", "text", "expected"),
    [
        ("x86_64", f"flags\t\t: {AVX512}\n", "cpu-avx512"),
        ("AMD64", f"flags\t\t: {AVX2}\n", "cpu-avx2"),
        ("aarch64", f"flags\t\t: {AVX512}\n", None),
        ("x86_64", "Features\t: asimd\n", None),
        ("x86_64", None, None),
    ],
)
def test_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, text: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_class() == expected


@pytest.mark.parametrize("name", CPU_CLASSES)
def test_classes_are_devices_of_numerics_classes(name: str) -> None:
    assert Arithmetic.parse(f"vllm-0.32.0/bfloat16/{name}").device == name
