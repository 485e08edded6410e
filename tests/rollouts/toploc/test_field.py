"""Interpolation over GF(65497) is exact, for any number of points and of polynomials at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.toploc.gf65497 import MOST_POINTS, PRIME, evaluate, interpolate


def points(seed: int, count: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.stack([rng.choice(PRIME, size=k, replace=False) for _ in range(count)])
    return x.astype(np.float64), rng.integers(0, PRIME, (count, k)).astype(np.float64)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5), k=st.integers(1, 140))
def test_the_polynomial_goes_through_its_points(seed: int, count: int, k: int) -> None:
    x, y = points(seed, count, k)
    coefficients = interpolate(x, y)
    for row in range(count):  # Horner's rule in integers
        for at, expected in zip(x[row].astype(int).tolist(), y[row].astype(int).tolist(), strict=True):
            value = 0
            for coefficient in reversed(coefficients[row].astype(int).tolist()):
                value = (value * at + coefficient) % PRIME
            assert value == expected
    assert (evaluate(coefficients, x) == y).all()


@pytest.mark.parametrize("k", [1000, MOST_POINTS])
def test_the_largest_proofs_are_exact(k: int) -> None:
    x, y = points(1, 1, k)
    assert (evaluate(interpolate(x, y), x) == y).all()


def test_the_largest_elements_are_exact() -> None:
    x = np.arange(PRIME - MOST_POINTS, PRIME, dtype=np.float64)[None]
    y = np.full_like(x, PRIME - 1)
    coefficients = interpolate(x, y)
    assert coefficients[0, 0] == PRIME - 1
    assert not coefficients[0, 1:].any()
