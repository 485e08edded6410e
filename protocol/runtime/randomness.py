"""Random numbers that a simulation can repeat from a seed (docs/decisions/0077).

`generator` and the functions `jittered`, `unit` and `shuffled` are fast but predictable. They serve for jitter and for
spreading load. `token_bytes`, `token_hex`, `randbelow` and `randbits` draw from the operating system like the module
`secrets`. They serve for ids, nonces and other values that a stranger must not guess. Credentials (keys, passwords,
access tokens) come from `secrets` itself, so that a seed can never make them predictable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from random import Random, SystemRandom
from typing import TypeVar

__all__ = [
    "Random",
    "generator",
    "jittered",
    "randbelow",
    "randbits",
    "seeded",
    "shuffled",
    "token_bytes",
    "token_hex",
    "unit",
]

T = TypeVar("T")

generator = Random()  # noqa: S311 - predictable, for jitter only
"""This process's generator of predictable numbers."""

_unpredictable: Random = SystemRandom()


def jittered(pause: timedelta, *, least: float = 0.5) -> timedelta:
    """Returns `pause` times a random factor between `least` and 1.

    Peers that use it do not retry at the same moment.
    """
    scaled: timedelta = pause * generator.uniform(least, 1.0)
    return scaled


def unit() -> float:
    """Returns a random number from the uniform distribution over [0, 1)."""
    return generator.random()


def shuffled(items: Sequence[T]) -> list[T]:
    """Returns the items in a random order."""
    return generator.sample(items, len(items))


def token_bytes(size: int) -> bytes:
    """Returns `size` unpredictable bytes."""
    return _unpredictable.randbytes(size)


def token_hex(size: int) -> str:
    """Returns `size` unpredictable bytes as hexadecimal text."""
    return token_bytes(size).hex()


def randbelow(limit: int) -> int:
    """Returns an unpredictable integer in [0, `limit`)."""
    return _unpredictable.randrange(limit)


def randbits(bits: int) -> int:
    """Returns an unpredictable integer of `bits` bits."""
    return _unpredictable.getrandbits(bits)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Makes all numbers of this module repeatable within the block.

    They are then predictable, so this is only for simulations and tests.
    """
    global _unpredictable  # noqa: PLW0603 - one source per process
    before, state = _unpredictable, generator.getstate()
    generator.seed(seed)
    _unpredictable = Random(f"muster-tokens-v1:{seed}")  # noqa: S311 - predictable on purpose
    try:
        yield
    finally:
        _unpredictable = before
        generator.setstate(state)
