"""Compares proofs with the verifier's points, all in one vectorised pass; malformed proofs have a result too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollouts.toploc.gf65497 import PRIME, evaluate
from rollouts.toploc.points import Points
from rollouts.toploc.results import WORST, Malformed, ProofResult
from rollouts.toploc.selection import Indices

LARGEST_MODULUS = PRIME
SMALLEST_MODULUS = 65433
"""Smallest modulus that a verifier accepts. A prover rarely needs a modulus below `LARGEST_MODULUS`: random indices are
distinct under `LARGEST_MODULUS` in 94 of 100 intervals of 32 x 4096 values; see docs/toploc.md."""

_SIGN, _MAGNITUDE, _MANTISSA = 0x8000, 0x7FFF, 0x7F
_REASONS = (None, Malformed.LENGTH, Malformed.MODULUS, Malformed.COEFFICIENT, Malformed.PADDING)


def compare(proofs: Sequence[bytes], points: Points, *, top_k: int) -> list[ProofResult]:
    """Compares one proof of `top_k` coefficients with each chunk's points.

    Args:
        proofs: Any bytes, one per chunk of `points`.
        points: The verifier's points, k ≤ `top_k` per chunk.
        top_k: Coefficients of a proof.

    Returns:
        One result per proof.
    """
    length, k = 2 * (1 + top_k), points.indices.shape[1]
    whole = np.array([len(proof) == length for proof in proofs], np.bool_)
    words = np.frombuffer(b"".join(proof if len(proof) == length else bytes(length) for proof in proofs), ">u2")
    moduli, coefficients = np.split(words.reshape(-1, 1 + top_k).astype(np.int64), [1], axis=1)
    least = np.where(points.sizes > LARGEST_MODULUS, SMALLEST_MODULUS, LARGEST_MODULUS)
    refused = [
        ~whole,
        (moduli[:, 0] < least) | (moduli[:, 0] > LARGEST_MODULUS),
        (coefficients >= PRIME).any(axis=1),
        (coefficients[:, k:] != 0).any(axis=1),
    ]
    reasons = np.select(refused, range(1, len(_REASONS)))
    sound = reasons == 0
    x = points.indices % np.where(sound[:, None], moduli, 1)
    claimed = evaluate(np.where(sound[:, None], coefficients[:, :k], 0).astype(np.float64), x.astype(np.float64))
    rows = zip(*_differences(claimed.astype(np.int64), points.bits.astype(np.int64)), strict=True)
    return [
        ProofResult.refused(reason) if (reason := _REASONS[number]) else ProofResult(None, k, *row)
        for number, row in zip(reasons.tolist(), rows, strict=True)
    ]


def _differences(claimed: Indices, own: Indices) -> tuple[list[int], list[int], list[int], list[float], list[int]]:
    """Returns the figures of `ProofResult` in its order: one list per figure with one entry per proof."""
    exponents = (claimed ^ own) & (_MAGNITUDE - _MANTISSA) != 0
    signs = ((claimed ^ own) & _SIGN != 0) & ((claimed | own) & _MAGNITUDE != 0)
    mantissas = np.where(exponents, int(WORST), np.abs((claimed & _MANTISSA) - (own & _MANTISSA)))
    matching = own.shape[1] - exponents.sum(axis=1)
    return (
        exponents.sum(axis=1).tolist(),
        signs.sum(axis=1).tolist(),
        np.where(exponents, 0, mantissas).sum(axis=1).tolist(),
        _medians(mantissas, matching).tolist(),
        np.minimum(np.abs(_ordered(claimed) - _ordered(own)), int(WORST)).sum(axis=1).tolist(),
    )


def _ordered(bits: Indices) -> Indices:
    """Maps bit patterns to integers in the order of their values.

    Neighbouring bfloat16 values differ by one, and both zeros map to 0.
    """
    return np.where(bits & _SIGN, -(bits & _MAGNITUDE), bits & _MAGNITUDE)


def _medians(values: Indices, counts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Returns the median of the `counts` smallest values of each row, or the smallest value if the count is 0."""
    rising = np.sort(values.astype(np.int16), axis=1)
    low = np.take_along_axis(rising, np.maximum(counts - 1, 0)[:, None] // 2, axis=1)
    high = np.take_along_axis(rising, np.minimum(counts // 2, values.shape[1] - 1)[:, None], axis=1)
    return np.add(low, high)[:, 0] / 2
