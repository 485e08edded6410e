"""The logarithm of the noise kernel alone, in double precision, for comparison with torch's on a GPU.

A logarithm that is off by one unit of a double changes about one value of the noise in 10^8, so equal noise is weak
evidence of equal logarithms. Importing this module imports triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rollouts.sampling.noise_triton import FUSED

_BLOCK = 1024


def logarithm_triton(values: torch.Tensor) -> torch.Tensor:
    """Returns the logarithm of each value, float64 [N], on the values' device."""
    out = torch.empty_like(values)
    size = values.numel()
    _logarithm_kernel[(triton.cdiv(size, _BLOCK),)](values, out, size, _BLOCK, enable_fp_fusion=FUSED)
    return out


@triton.jit
def _logarithm_kernel(values: tl.tensor, out: tl.tensor, size: tl.tensor, block: tl.constexpr) -> None:
    place = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(values + place, mask=place < size, other=1.0)
    tl.store(out + place, tl.log(value), mask=place < size)
