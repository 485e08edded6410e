"""Runs the noise kernel in Triton's interpreter: `TRITON_INTERPRET=1 python -m tests.rollouts.triton_interpreter FILE`.

Triton reads the variable when it is imported, so this is a process of its own. It writes the noise of every case.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch

from rollouts.sampling.noise import Keys, row_keys, stream


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of keys and a vocabulary.

    Args:
        keys: Noise keys of the rows.
        vocabulary: Tokens per row.
        counters: Counters per program; the interpreter needs 0.1 s per program of any size.
    """

    keys: Keys
    vocabulary: int
    counters: int = 256


def keys_of(rows: int, *, seed: int = 1) -> Keys:
    """Returns keys of arbitrary samples; the first and the last position are the extreme ones."""
    numbers = np.random.default_rng(seed).integers(0, 1 << 32, (2, rows)).tolist()
    keys = row_keys([stream(bytes([seed] * 32), sample) for sample in numbers[0]], numbers[1])
    keys[0, 4], keys[-1, 4] = 0, (1 << 32) - 1
    return keys


CASES = {
    **{f"{rows} x {size}": Case(keys_of(rows), size) for rows in (1, 7) for size in (1, 63, 64, 1000)},
    "1 x 1025, one token in the second block": Case(keys_of(1), 1025),
    "1 x 49152": Case(keys_of(1), 49_152),
    "7 x 49152, large blocks": Case(keys_of(7, seed=2), 49_152, counters=4096),
    "2 x 50257, a multiple of nothing": Case(keys_of(2, seed=3), 50_257, counters=4096),
    "every bit of the keys set": Case(np.full((2, 5), (1 << 32) - 1, np.uint64), 1000),
    "no bit of the keys set": Case(np.zeros((2, 5), np.uint64), 1000),
    "no rows": Case(np.zeros((0, 5), np.uint64), 1000),
    **{f"arbitrary keys {seed}": Case(keys_of(2, seed=seed), 2061) for seed in range(4, 8)},
}


def main() -> None:
    """Writes the noise of every case to the given file."""
    from rollouts.sampling import noise_triton  # noqa: PLC0415 - the tests import the cases without triton

    found = {}
    for name, case in CASES.items():
        noise_triton.COUNTERS = case.counters
        found[name] = noise_triton.noise_triton(case.keys, case.vocabulary, device=torch.device("cpu")).numpy()
    np.savez(sys.argv[1], **found)  # type: ignore[arg-type]  # numpy's annotation takes any name for `allow_pickle`


if __name__ == "__main__":
    main()
