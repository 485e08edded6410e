"""Philox4x32-10: maps a counter and a key to four 32-bit words, the same on every machine.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Shapes broadcast, which speeds up
the first rounds: if only the counter's first word differs within a row, most of two rounds is computed once per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
"""Arrays of uint64, which can hold products of two words. The annotation is wider, because numpy annotates the results
of operations in this way."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
"""The paper's constants. With other constants, the known-answer tests and every replay fail."""

_LOW = 0xFFFFFFFF
_Words = TypeVar("_Words", Integers, torch.Tensor)


def philox_numpy(
    counter: tuple[Integers, Integers, Integers, Integers], key: tuple[Integers, Integers]
) -> tuple[Integers, ...]:
    """Returns four words for each counter.

    Args:
        counter: Four uint64 arrays of words under 2^32, of shapes that broadcast.
        key: Two such arrays.
    """
    return _philox(counter, key, _multiply_numpy)


def philox_torch(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Returns four words for each counter, as int64 tensors on any device: torch can't multiply unsigned words."""
    return _philox(counter, key, _multiply_torch)


def _philox(
    counter: tuple[_Words, _Words, _Words, _Words],
    key: tuple[_Words, _Words],
    multiply: Callable[[_Words, int], tuple[_Words, _Words]],
) -> tuple[_Words, ...]:
    zero, one, two, three = counter
    left, right = key
    for _ in range(ROUNDS):
        high_zero, low_zero = multiply(zero, MULTIPLIERS[0])
        high_two, low_two = multiply(two, MULTIPLIERS[1])
        zero, one, two, three = high_two ^ one ^ left, low_two, high_zero ^ three ^ right, low_zero
        left, right = (left + WEYL[0]) & _LOW, (right + WEYL[1]) & _LOW
    return zero, one, two, three


def _multiply_numpy(words: Integers, by: int) -> tuple[Integers, Integers]:
    product = words * np.uint64(by)
    return product >> 32, product & _LOW


def _multiply_torch(words: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiplies by `by - 2^32`, which fits into a signed word, and adds the difference to the upper half."""
    product = words * (by - (1 << 32))
    return ((product >> 32) + words) & _LOW, product & _LOW
