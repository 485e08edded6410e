"""States to prove: drawn from a seed, or given as bytes."""

from __future__ import annotations

import torch


def normal_states(rows: int, hidden: int, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Returns (rows, hidden) values of the standard normal distribution."""
    return torch.randn(rows, hidden, generator=torch.Generator().manual_seed(seed)).to(dtype)


def states_from_bits(bits: list[int], hidden: int) -> torch.Tensor:
    """Returns states whose values have these bfloat16 bit patterns, row by row."""
    raw = torch.tensor([bit - 65536 if bit > 32767 else bit for bit in bits], dtype=torch.int16)
    return raw.view(torch.bfloat16).reshape(-1, hidden)


def evaluated(proof: bytes, index: int) -> int:
    """Evaluates a proof at an index by Horner's rule in integers, independently of the product's code."""
    modulus, *coefficients = (int.from_bytes(proof[at : at + 2], "big") for at in range(0, len(proof), 2))
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * (index % modulus) + coefficient) % 65497
    return value
