"""Random choices that are equal on every machine: a SHA-256 stream, because library generators may change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")

_WORD_BYTES = 8
_WORDS = 2**64


class PrngStream:
    """An endless stream of choices, determined by purpose and index.

    Args:
        purpose: Purpose of the choices, such as `letters-v1`; streams of different purposes are independent.
        index: Number of the stream within that purpose.
    """

    def __init__(self, purpose: str, index: int) -> None:
        self._key = hashlib.sha256(f"muster-draws-v1\n{purpose}\n{index}".encode()).digest()
        self._count = 0

    def below(self, bound: int) -> int:
        """Returns a number from 0 to `bound` - 1; its bias is below bound / 2^64, which is undetectable."""
        block = hashlib.sha256(self._key + self._count.to_bytes(_WORD_BYTES, "big")).digest()
        self._count += 1
        return int.from_bytes(block[:_WORD_BYTES], "big") * bound // _WORDS

    def between(self, smallest: int, largest: int) -> int:
        """Returns a number from `smallest` to `largest`, both included."""
        return smallest + self.below(largest - smallest + 1)

    def one_of(self, choices: Sequence[_T]) -> _T:
        """Returns one of the choices with equal probability."""
        return choices[self.below(len(choices))]
