"""Polynomials over GF(65497), for many proofs at once.

All arithmetic is exact in float64. Internally, an element is the residue nearest to 0, at most 2¹⁵ in magnitude. A
product of two residues stays below 2³⁰, and a sum of `MOST_POINTS` such products below 2⁴². Reductions take most of the
run time, so up to `_MOST_TRIPLES` products of three residues are summed before they are reduced. Arrays of shape (B, k)
hold one polynomial, or one set of points, per row; coefficients are in ascending powers.

Interpolation by divided differences would take k dependent steps. This module uses Lagrange's formula instead,

    c(X) = Σᵢ aᵢ · M(X) / (X - xᵢ),   M(X) = Πᵢ (X - xᵢ),   aᵢ = yᵢ / M'(xᵢ)

where the quotients' coefficients follow from those of M and the power sums sₜ = Σᵢ aᵢ·xᵢᵗ. This takes a product tree,
two small matrix products and one convolution, each over all proofs of a batch at once.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

PRIME = 65497
"""Size of the field, fixed by the format. All bfloat16 bit patterns that are not elements of the field are NaNs."""
MOST_POINTS = 4096
"""Maximum number of points. With more points, the rounding error of an FFT convolution could approach one half and make
a coefficient wrong."""

Elements = NDArray[np.float64]

_LONGEST_DIRECT = 8
_MOST_TRIPLES = 256
"""Maximum number of products of three residues with a sum below 2⁵³."""
_RECIPROCAL = 1.0 / PRIME


def interpolate(x: Elements, y: Elements) -> Elements:
    """Returns the coefficients of the polynomials of degree below k through k points each.

    Args:
        x: (B, k) integers in [0, 65497), distinct within a row; k ≤ `MOST_POINTS`.
        y: (B, k) integers in [0, 65497).

    Returns:
        (B, k) integers in [0, 65497).
    """
    count, k = x.shape
    baby, giant = _powers(x, k)
    master = _master(x)
    slope = _reduced(np.concatenate([master[:, 1:], np.ones((count, 1))], axis=1) * np.arange(1, k + 1))
    weights = _reduced(y * _inverses()[_at(slope, baby, giant).astype(np.intp)])
    strides = _summable(weights * giant, k)
    factors = np.empty((2, count, k))  # M's coefficients in descending powers, and the power sums
    factors[0, :, 0], factors[0, :, 1:] = 1.0, master[:, :0:-1]
    factors[1] = _reduced(strides.transpose(1, 0, 2) @ baby.transpose(1, 2, 0)).reshape(count, -1)[:, :k]
    return _least(_reduced(_convolved(factors)[:, :k]))[:, ::-1]


def evaluate(coefficients: Elements, x: Elements) -> Elements:
    """Evaluates one polynomial per row: (B, k) coefficients at (B, n) points give (B, n) values.

    Coefficients, points and values are integers in [0, 65497).
    """
    return _least(_at(coefficients, *_powers(x, coefficients.shape[1])))


def _reduced(values: Elements) -> Elements:
    """Reduces integers below 2⁵³ in magnitude in place to the residues nearest to 0.

    The result is exact although the quotient is rounded. A residue may exceed half the prime by one or two: 32,750
    instead of 32,748.
    """
    quotients = values * _RECIPROCAL
    np.rint(quotients, out=quotients)
    quotients *= PRIME
    values -= quotients
    return values


def _summable(products: Elements, count: int) -> Elements:
    """Reduces products of two residues if `count` of them, each times another residue, could exceed 2⁵³."""
    return products if count <= _MOST_TRIPLES else _reduced(products)


def _least(residues: Elements) -> Elements:
    """Maps residues to [0, 65497) in place."""
    residues += PRIME * (residues < 0)
    return residues


def _powers(x: Elements, k: int) -> tuple[Elements, Elements]:
    """Returns powers for evaluating polynomials of degree below k by baby steps and giant steps.

    The baby steps are x⁰ … x^(b-1), (b, B, n). The giant steps are x⁰, xᵇ, x²ᵇ, … up to x^(k-1), (⌈k/b⌉, B, n).
    """
    steps = 1 << ((k - 1).bit_length() + 1) // 2
    baby = _ladder(x, steps + 1)
    return baby[:steps], _ladder(baby[steps], -(-k // steps))


def _ladder(x: Elements, count: int) -> Elements:
    """Returns x⁰ … x^(count-1), computed by doubling; (count, B, n)."""
    powers = np.empty((max(2, count), *x.shape))
    powers[0], powers[1] = 1.0, x
    _reduced(powers[1])
    done = 2
    while done < count:
        more = min(done - 1, count - done)
        _reduced(np.multiply(powers[1 : more + 1], powers[done - 1], out=powers[done : done + more]))
        done += more
    return powers[:count]


def _at(coefficients: Elements, baby: Elements, giant: Elements) -> Elements:
    """Evaluates polynomials from the results of `_powers`; residues, (B, n).

    The value is Σᵤ x^(u·b) · Σᵥ c[u·b + v]·xᵛ.
    """
    count, k = coefficients.shape
    steps, strides = len(baby), len(giant)
    padded = np.zeros((count, strides * steps))
    padded[:, :k] = coefficients
    inner = _summable(padded.reshape(count, strides, steps) @ baby.transpose(1, 0, 2), strides * steps)
    return _reduced(np.einsum("bsn,sbn->bn", inner, giant))


def _master(x: Elements) -> Elements:
    """Returns the coefficients of Π (X - xᵢ) as residues, without the leading 1; (B, k).

    The function builds a product tree. Its monic factors are stored without their leading coefficient 1:
    (Xᵈ + l)(Xᵈ + r) = X²ᵈ + Xᵈ·(l + r) + l·r.
    """
    count, k = x.shape
    width = 1 << (k - 1).bit_length()
    factors = np.zeros((1, width, count))  # roots at 0 pad the tree; the final slice drops them
    np.negative(x.T, out=factors[0, :k])
    degree = 1
    while degree < min(width, 2 * _LONGEST_DIRECT):  # (degree, factors, B)
        left, right = factors[:, : width // 2 // degree], factors[:, width // 2 // degree :]
        factors, room = np.empty((2 * degree, *left.shape[1:])), np.empty(right.shape)
        np.multiply(left[0], right, out=factors[:degree])
        np.add(left, right, out=factors[degree:])
        for power in range(1, degree):
            factors[power : power + degree] += np.multiply(left[power], right, out=room)
        factors, degree = _reduced(factors), 2 * degree
    factors = np.ascontiguousarray(factors.transpose(1, 2, 0))
    while degree < width:  # (factors, B, degree)
        pairs = factors.reshape(2, -1, count, degree)
        factors = _convolved(pairs)
        factors[..., degree:] += pairs[0]
        factors[..., degree:] += pairs[1]
        factors, degree = _reduced(factors), 2 * degree
    return factors[0, :, width - k :]


def _convolved(pairs: Elements) -> Elements:
    """Returns the products of pairs of polynomials, (2, …, k), as (…, 2k) unreduced integers; the last is 0.

    The function uses numpy's FFT. Torch first plans a transform, which doubles the time on a new thread or on a core
    that did other work.
    """
    size = 2 * pairs.shape[-1]
    left, right = np.fft.rfft(pairs, size)
    left *= right
    product = np.fft.irfft(left, size)
    return np.rint(product, out=product)


@cache
def _inverses() -> Elements:
    """Returns the inverse of each residue (0 for 0) by Fermat's theorem, a^(p-2).

    Negative residues can be used as indices too, because they count from the end of the array.
    """
    base, result = np.arange(PRIME, dtype=np.float64), np.ones(PRIME)
    for bit in f"{PRIME - 2:b}":
        result = _reduced(result * result)
        if bit == "1":
            result = _reduced(result * base)
    return result
