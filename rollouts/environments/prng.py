"""Random choices that every machine makes alike: a stream of SHA-256, not a library's generator that may change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")

_WORD_BYTES = 8
_WORDS = 2**64


class PrngStream:
    """An endless stream of choices, the same for the same purpose and index.

    Args:
        purpose: What the choices are for, such as `letters-v1`: streams of different purposes are independent.
        index: Which stream of that purpose.
    """

    def __init__(self, purpose: str, index: int) -> None:
        self._key = hashlib.sha256(f"muster-draws-v1\n{purpose}\n{index}".encode()).digest()
        self._count = 0

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1. Off from uniform by less than bound / 2^64, which nobody can notice."""
        block = hashlib.sha256(self._key + self._count.to_bytes(_WORD_BYTES, "big")).digest()
        self._count += 1
        return int.from_bytes(block[:_WORD_BYTES], "big") * bound // _WORDS

    def between(self, smallest: int, largest: int) -> int:
        """A number from `smallest` to `largest`, both included."""
        return smallest + self.below(largest - smallest + 1)

    def one_of(self, choices: Sequence[_T]) -> _T:
        """One of these, each alike."""
        return choices[self.below(len(choices))]
