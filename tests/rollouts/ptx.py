"""Reads arithmetic in double precision from PTX, NVIDIA's assembly language, and compiles CUDA's logarithm to PTX."""

from __future__ import annotations

import ctypes
import hashlib
import re
from importlib import metadata
from pathlib import Path

NVRTC = "nvidia-cuda-nvrtc"
"""Package of NVIDIA's compiler, which torch for CUDA depends on. It needs no GPU."""

_LOGARITHM = b'extern "C" __global__ void logarithm(double* x) { x[threadIdx.x] = ::log(x[threadIdx.x]); }'
_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s+(%\w+),\s*([^;]*);", re.MULTILINE)
_OPERATIONS = ("add", "sub", "mul", "fma", "neg", "rcp")


def reciprocal_formulas(ptx: str) -> set[str]:
    """Returns a digest of each distinct formula in double precision that uses a reciprocal.

    Constants and operations, contracted ones included, are part of a formula; register names and the order of
    independent instructions are not. Values of other operations, and of registers that are written more than once, are
    inputs without names. CUDA's logarithm uses one reciprocal, so its formulas are those of its polynomial and its sum.
    """
    lines = _INSTRUCTION.findall(ptx)
    written = [register for _, register, _ in lines]
    formulas: dict[str, str] = {}
    dependent: set[str] = set()
    found: set[str] = set()
    for instruction, register, text in lines:
        operation, operands = instruction.split(".")[0], [operand.strip() for operand in text.split(",")]
        value, uses = "input", False
        if operation == "mov" and operands[0].startswith("0d"):
            value = operands[0]
        elif operation in _OPERATIONS and instruction.endswith(".f64"):
            value = _digest(operation, [_formula_of(operand, formulas) for operand in operands])
            uses = operation == "rcp" or not dependent.isdisjoint(operands)
        if uses:
            found.add(value)
        if written.count(register) > 1:
            value, uses = "input", False
        formulas[register] = value
        if uses:
            dependent.add(register)
    return found


def _formula_of(operand: str, formulas: dict[str, str]) -> str:
    return formulas.get(operand, "input" if operand.startswith("%") else operand)


def _digest(operation: str, operands: list[str]) -> str:
    if operation in ("add", "mul", "fma"):
        operands = [*sorted(operands[:2]), *operands[2:]]
    return hashlib.sha256(" ".join([operation, *operands]).encode()).hexdigest()[:12]


def cuda_logarithm(*, fused: bool) -> str | None:
    """Returns the PTX of CUDA's `log` for doubles as NVRTC compiles it; None without the package `NVRTC`."""
    try:
        files = metadata.files(NVRTC) or []
    except metadata.PackageNotFoundError:
        return None
    paths = sorted(
        Path(str(file.locate())) for file in files if re.fullmatch(r"libnvrtc(-builtins)?\.so\.[\d.]+", file.name)
    )
    for path in paths:  # the built-ins come first: the compiler looks for a loaded library of their name
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [b"--gpu-architecture=sm_90", b"--fmad=true" if fused else b"--fmad=false"]
    given = (ctypes.c_char_p * len(options))(*options)
    steps = [
        library.nvrtcCreateProgram(ctypes.byref(program), _LOGARITHM, b"log.cu", 0, None, None),
        library.nvrtcCompileProgram(program, len(options), given),
        library.nvrtcGetPTXSize(program, ctypes.byref(size)),
    ]
    text = ctypes.create_string_buffer(size.value)
    steps.append(library.nvrtcGetPTX(program, text))
    if any(steps):
        raise RuntimeError(f"NVRTC's calls returned {steps}")
    return text.value.decode()
