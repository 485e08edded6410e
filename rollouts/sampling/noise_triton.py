"""Noise on NVIDIA GPUs as one Triton kernel: the operations of `noise_torch`, in one pass over memory.

A program computes the noise of one row for a block of counters: the rounds of Philox in registers of 32 bits, and for
each word a conversion to double, two logarithms, and one rounding to single. The logarithm is the only operation with
several roundings. It is CUDA's `log` for doubles, as in torch, and compiled like torch's: with fused multiply-adds.
Without fused multiply-adds, one of its operations would be rounded differently
([decision 81](../../docs/decisions/0081-fused-noise-kernel.md)).

Importing this module imports triton, which comes with torch for CUDA and with vLLM for CUDA.

Shapes: b rows, v tokens of the vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from rollouts.sampling.philox import MULTIPLIERS, ROUNDS, WEYL

COUNTERS = 256
"""Counters per program, a power of two; each counter yields the words of four tokens."""
FUSED = True
"""Whether the compiler may contract a product and a sum to a fused multiply-add; True, as in torch's own kernels."""

# A Triton kernel can only read globals of the type `tl.constexpr`.
_LEFT_MULTIPLIER, _RIGHT_MULTIPLIER = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
_LEFT_STEP, _RIGHT_STEP = tl.constexpr(WEYL[0]), tl.constexpr(WEYL[1])
_ROUNDS = tl.constexpr(ROUNDS)


def noise_triton(keys: NDArray[np.uint64], vocabulary: int, *, device: torch.device) -> torch.Tensor:
    """Returns the noise of each row, float32 [B, V], computed by one kernel on an NVIDIA GPU."""
    on_device = torch.from_numpy(keys.astype(np.int64)).to(device)
    out_bv = torch.empty((len(keys), vocabulary), dtype=torch.float32, device=device)
    if out_bv.numel():
        grid = (len(keys), triton.cdiv(vocabulary, 4 * COUNTERS))
        with torch.cuda.device_of(out_bv):  # type: ignore[no-untyped-call]  # triton launches on the current one
            noise_kernel[grid](on_device, out_bv, vocabulary, COUNTERS, enable_fp_fusion=FUSED)
    return out_bv


@triton.jit
def noise_kernel(
    keys: tl.tensor,
    out: tl.tensor,
    vocabulary: tl.tensor,
    counters: tl.constexpr,
) -> None:
    """Writes the noise of one row (axis 0 of the grid) and of one block of counters (axis 1).

    Args:
        keys: int64 [B, 5], the result of `row_keys`.
        out: float32 [B, V].
        vocabulary: V.
        counters: Counters per program.
    """
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * counters
    left = tl.load(keys + 5 * row).to(tl.uint32)
    right = tl.load(keys + 5 * row + 1).to(tl.uint32)
    two = tl.load(keys + 5 * row + 2).to(tl.uint32)
    three = tl.load(keys + 5 * row + 3).to(tl.uint32)
    one = tl.load(keys + 5 * row + 4).to(tl.uint32)
    zero = (start + tl.arange(0, counters)).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        high_zero, low_zero = tl.umulhi(zero, _LEFT_MULTIPLIER), zero * _LEFT_MULTIPLIER
        high_two, low_two = tl.umulhi(two, _RIGHT_MULTIPLIER), two * _RIGHT_MULTIPLIER
        zero, one, two, three = high_two ^ one ^ left, low_two, high_zero ^ three ^ right, low_zero
        left, right = left + _LEFT_STEP, right + _RIGHT_STEP
    even = tl.interleave(_gumbel(zero), _gumbel(two))
    odd = tl.interleave(_gumbel(one), _gumbel(three))
    token = 4 * start + tl.arange(0, 4 * counters)
    tl.store(out + row * vocabulary + token, tl.interleave(even, odd), mask=token < vocabulary)


@triton.jit
def _gumbel(words: tl.tensor) -> tl.tensor:
    """Returns the noise of words, uint32, as float32."""
    values = (words.to(tl.float64) + 0.5) * 2.0**-32
    return (-tl.log(-tl.log(values))).to(tl.float32)
