"""Random numbers that protect no secret: jitter and load spreading. Secrets come from the module `secrets`.

All of them are drawn from one generator, so that a simulation can repeat a run from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import TypeVar

__all__ = ["Random", "generator", "jittered", "shuffled", "unit"]

T = TypeVar("T")

generator = Random()  # noqa: S311 - protects no secret
"""The process's generator; `generator.seed(number)` makes the following numbers repeatable."""


def jittered(pause: timedelta, *, least: float = 0.5) -> timedelta:
    """Returns `pause` times a random factor between `least` and 1, so that many peers don't retry in step."""
    scaled: timedelta = pause * generator.uniform(least, 1.0)
    return scaled


def unit() -> float:
    """Returns a uniform number in [0, 1)."""
    return generator.random()


def shuffled(items: Sequence[T]) -> list[T]:
    """Returns the items in a random order."""
    return generator.sample(items, len(items))
