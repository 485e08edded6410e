"""Polynomials over GF(65497), for many proofs at once.

Everything is float64 and exact: an element is an integer in [0, 65497), a product of two is below 2³², and a sum of as
many products as a proof may have points (`MOST_POINTS`) stays below 2⁴⁵. An array of shape (B, k) holds one polynomial,
or one set of points, per row; coefficients stand in ascending powers.

Divided differences take k dependent steps. Here interpolation is Lagrange's formula instead,

    c(X) = Σᵢ aᵢ · M(X) / (X - xᵢ),   M(X) = Πᵢ (X - xᵢ),   aᵢ = yᵢ / M'(xᵢ)

where the coefficients of the quotients are those of M against the power sums sₜ = Σᵢ aᵢ·xᵢᵗ. So the whole is a product
tree, two small matrix products and one convolution, and each of these runs over all proofs of a batch at once.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

PRIME = 65497
"""The size of the field, fixed by the format. The bit patterns of bfloat16 that are no elements are all NaNs."""
MOST_POINTS = 4096
"""Of more points, the rounding error of a convolution by FFT might near one half, and a coefficient be wrong by one."""

Elements = NDArray[np.float64]

_SHORTEST_FFT = 8
_RECIPROCAL = 1.0 / PRIME


def reduce(values: Elements) -> Elements:
    """The residues of integers in [0, 2⁴⁶): the half keeps a multiple of the prime from being rounded below itself."""
    quotients = np.floor((values + 0.5) * _RECIPROCAL)
    quotients *= PRIME
    return np.subtract(values, quotients, out=quotients)


def interpolate(x: Elements, y: Elements) -> Elements:
    """The coefficients of the polynomials of degree below k through k points each.

    Args:
        x: (B, k) elements, distinct within a row; k ≤ `MOST_POINTS`.
        y: (B, k) elements.

    Returns:
        (B, k) elements.
    """
    k = x.shape[1]
    baby, giant = _powers(x, k)
    master = _master(x)
    slope = np.concatenate([master[:, 1:], np.ones_like(master[:, :1])], axis=1) * np.arange(1, k + 1)
    weights = reduce(y * _inverses()[_at(reduce(slope), baby, giant).astype(np.intp)])
    sums = reduce(reduce(weights[:, None] * giant) @ baby.transpose(0, 2, 1)).reshape(len(x), -1)[:, :k]
    descending = np.concatenate([np.ones_like(master[:, :1]), master[:, :0:-1]], axis=1)
    return reduce(_product(descending, sums)[:, :k])[:, ::-1]


def evaluate(coefficients: Elements, x: Elements) -> Elements:
    """The polynomials' values at points of their own: (B, k) coefficients and (B, n) elements give (B, n) elements."""
    return _at(coefficients, *_powers(x, coefficients.shape[1]))


def _at(coefficients: Elements, baby: Elements, giant: Elements) -> Elements:
    """Evaluates from powers: Σᵤ x^(u·b) · Σᵥ c[u·b + v]·xᵛ."""
    count, k = coefficients.shape
    steps, strides = baby.shape[1], giant.shape[1]
    padded = np.zeros((count, strides * steps))
    padded[:, :k] = coefficients
    inner = reduce(padded.reshape(count, strides, steps) @ baby)
    inner *= giant
    return reduce(inner.sum(axis=1))


def _powers(x: Elements, k: int) -> tuple[Elements, Elements]:
    """Baby steps x⁰ … x^(b-1) and giant steps x⁰, xᵇ, x²ᵇ, … up to x^(k-1); (B, b, n) and (B, ⌈k/b⌉, n)."""
    steps = 1 << ((k - 1).bit_length() + 1) // 2
    baby = _ladder(x, steps + 1)
    return baby[:, :steps], _ladder(baby[:, steps], -(-k // steps))


def _ladder(x: Elements, count: int) -> Elements:
    """x⁰ … x^(count-1) by doubling, as (B, count, n)."""
    powers = np.empty((len(x), count, x.shape[1]))
    powers[:, 0] = 1.0
    powers[:, 1:2] = x[:, None]
    done = 2
    while done < count:
        more = min(done - 1, count - done)
        powers[:, done : done + more] = reduce(powers[:, 1 : more + 1] * powers[:, done - 1 : done])
        done += more
    return powers


def _master(x: Elements) -> Elements:
    """The coefficients of Π (X - xᵢ) below its leading one, which is 1; (B, k)."""
    count, k = x.shape
    width = 1 << (k - 1).bit_length()
    factors = np.zeros((count, width, 1))  # roots at 0 fill up the tree, and are shifted out at its end
    factors[:, :k, 0] = reduce(PRIME - x)
    while factors.shape[1] > 1:
        left, right = factors[:, 0::2], factors[:, 1::2]
        degree = left.shape[2]
        product = _product(left, right)
        product[:, :, degree:] += left + right
        factors = reduce(product)
    return factors[:, 0, width - k :]


def _product(left: Elements, right: Elements) -> Elements:
    """The products of polynomials of k coefficients each, not reduced; 2k coefficients, the last of them 0."""
    k = left.shape[-1]
    if k >= _SHORTEST_FFT:
        spectrum = np.fft.rfft(left, 2 * k)
        spectrum *= np.fft.rfft(right, 2 * k)
        exact = np.fft.irfft(spectrum, 2 * k)
        return np.maximum(np.rint(exact, out=exact), 0.0, out=exact)
    product = np.zeros((*left.shape[:-1], 2 * k))
    for power in range(k):
        product[..., power : power + k] += left[..., power : power + 1] * right
    return product


@cache
def _inverses() -> Elements:
    """The inverse of each element at its own place, by Fermat: a^(p-2). The inverse of 0 is given as 0."""
    base, result = np.arange(PRIME, dtype=np.float64), np.ones(PRIME)
    for bit in f"{PRIME - 2:b}":
        result = reduce(result * result)
        if bit == "1":
            result = reduce(result * base)
    return result
