"""TOPLOC's proof format (arXiv 2501.16007): the largest values of an interval as one polynomial over GF(65497).

A proof is a big-endian uint16 modulus m, then one big-endian uint16 coefficient per point, in ascending powers. The
polynomial maps each point's index mod m to the bit pattern of its bfloat16 value. m is the largest modulus up to 65497
under which the indices stay distinct. The verifier accepts m from 65433 to 65497; for intervals of at most 65497 values
it accepts only 65497. A prover that could choose any modulus could make all indices of a channel coincide, so that one
proof would fit many intervals.

An interval may have fewer values than a proof has points (one row of a very narrow model). Then all values are points,
and the remaining coefficients are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike

from protocol.errors import InvalidInput, MusterError
from rollouts.toploc.comparison import LARGEST_MODULUS, SMALLEST_MODULUS, compare
from rollouts.toploc.gf65497 import MOST_POINTS, PRIME, interpolate
from rollouts.toploc.points import points_of
from rollouts.toploc.results import Malformed, ProofResult
from rollouts.toploc.selection import Bits, Indices


class Unprovable(MusterError):
    """No modulus of the format keeps an interval's indices distinct, so no valid proof exists."""

    code = "unprovable"
    default_hint = "generate the sample again from another slot; report the model if it recurs"


@dataclass(frozen=True, slots=True)
class PolynomialCodec:
    """Builds proofs from chunks of hidden states and compares proofs with chunks.

    A chunk holds the states of one proof: at most `interval` rows of final hidden states, in step order, flattened. A
    stretch, (b, N), is b chunks of equal size that are contiguous in memory.

    Args:
        interval: Rows per proof; the last proof of a sequence may cover fewer.
        top_k: Points per proof.

    Raises:
        InvalidInput: A number is not positive, or `top_k` exceeds the number of points with exact arithmetic.
    """

    interval: int = 32
    top_k: int = 128

    def __post_init__(self) -> None:
        if self.interval < 1 or not 1 <= self.top_k <= MOST_POINTS:
            raise InvalidInput(
                f"a proof format can't have interval {self.interval} and top_k {self.top_k}",
                hint=f"an interval has at least 1 row, and a proof has 1 to {MOST_POINTS} points",
            )

    @property
    def name(self) -> str:
        """Name in files and calibrations; includes the parameters."""
        return f"toploc-{self.interval}-{self.top_k}"

    @property
    def proof_bytes(self) -> int:
        """Length of every proof: 258 bytes by default."""
        return 2 * (1 + self.top_k)

    def build(
        self, stretches: Sequence[torch.Tensor], *, sizes: Sequence[Sequence[int] | None] | None = None
    ) -> list[bytes]:
        """Returns one proof per chunk, in order.

        Args:
            stretches: (b, N) each.
            sizes: Number of valid values in each chunk of each stretch; None if all values are valid. Invalid values
                must be zero.

        Raises:
            Unprovable: A chunk has no valid proof.
        """
        proofs = [b""] * sum(stretch.shape[0] for stretch in stretches)
        for points in points_of(stretches, self.top_k, sizes=sizes):
            for place, proof in zip(points.places.tolist(), _encode(points.indices, points.bits), strict=True):
                proofs[place] = proof.ljust(self.proof_bytes, b"\0")
        return proofs

    def compare(self, stretches: Sequence[torch.Tensor], proofs: Sequence[bytes]) -> list[ProofResult]:
        """Compares each chunk of the (b, N) stretches with its own proof, in order. Malformed proofs raise no error."""
        results = [ProofResult.refused(Malformed.MISSING)] * len(proofs)
        for points in points_of(stretches, self.top_k):
            places = points.places.tolist()
            claimed = [proofs[place] for place in places]
            for place, result in zip(places, compare(claimed, points, top_k=self.top_k), strict=True):
                results[place] = result
        return results


def encode(indices: ArrayLike, bits: ArrayLike) -> bytes:
    """Returns the proof of given points.

    Args:
        indices: k distinct integers from 0, of any width.
        bits: k bit patterns, each below 65497.

    Returns:
        2·(1 + k) bytes.

    Raises:
        InvalidInput: `indices` or `bits` are not such integers.
        Unprovable: No modulus keeps the indices distinct.
    """
    x, y = _integers(indices, "indices", below=2**63), _integers(bits, "bits", below=PRIME)
    if x.shape != y.shape or not 1 <= x.size <= MOST_POINTS or len(np.unique(x)) != x.size:
        raise InvalidInput(
            f"{x.size} indices ({len(np.unique(x))} of them distinct) and {y.size} bit patterns make no proof",
            hint=f"a proof has 1 to {MOST_POINTS} points, each with a distinct index",
        )
    return _encode(x[None], y[None].astype(np.uint16))[0]


def _integers(values: ArrayLike, name: str, *, below: int) -> Indices:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidInput(f"{name} are {array.dtype} in {array.ndim} dimensions", hint="give a flat list of integers")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < below:
        raise InvalidInput(f"{name} go from {array.min()} to {array.max()}", hint=f"each is from 0 to {below - 1}")
    return array.astype(np.int64)


def _encode(indices: Indices, bits: Bits) -> list[bytes]:
    moduli = _moduli(indices)
    words = np.empty((len(indices), 1 + indices.shape[1]), ">u2")
    words[:, 0] = moduli
    x = indices if indices.max() < LARGEST_MODULUS else indices % moduli[:, None]
    words[:, 1:] = interpolate(x.astype(np.float64), bits.astype(np.float64))
    return [row.tobytes() for row in words]


def _moduli(indices: Indices) -> Indices:
    """Returns for each row the largest modulus that keeps its indices distinct."""
    moduli = np.full(len(indices), LARGEST_MODULUS, np.int64)
    left = np.flatnonzero(indices.max(axis=1) >= LARGEST_MODULUS)
    for modulus in range(LARGEST_MODULUS, SMALLEST_MODULUS - 1, -1):
        if not len(left):
            return moduli
        moduli[left] = modulus
        residues = np.sort(indices[left] % modulus, axis=1)
        left = left[(residues[:, 1:] == residues[:, :-1]).any(axis=1)]
    if not len(left):
        return moduli
    raise Unprovable(
        f"no modulus from {SMALLEST_MODULUS} to {LARGEST_MODULUS} keeps the {indices.shape[1]} indices distinct"
    )
