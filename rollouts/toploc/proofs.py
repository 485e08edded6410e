"""Builds proofs of sequences from their final hidden states, and verifies them against the verifier's states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from rollouts.toploc.intervals import split, stretches_of
from rollouts.toploc.polynomial import PolynomialCodec
from rollouts.toploc.results import Malformed, ProofResult

TOPLOC = PolynomialCodec()
"""The network's proof format: 128 points per 32 rows, 258 bytes."""


def build(states: torch.Tensor, *, interval: int = 32, top_k: int = 128) -> list[bytes]:
    """Builds the proofs of one sequence.

    Args:
        states: (rows, hidden) final hidden states (post-norm, the input of the LM head), one row per output token,
            starting with the row that produced the first token; bfloat16, float16 or float32, on any device.
        interval: Rows per proof.
        top_k: Points per proof.

    Returns:
        ⌈rows / interval⌉ proofs of 2·(1 + top_k) bytes each.

    Raises:
        InvalidInput: The states are not a tensor of this form.
        Unprovable: An interval has no valid proof in this format.
    """
    codec = PolynomialCodec(interval=interval, top_k=top_k)
    return codec.build(stretches_of(states, interval))


def verify(states: torch.Tensor, proofs: Sequence[bytes], *, interval: int = 32, top_k: int = 128) -> list[ProofResult]:
    """Compares one sequence's proofs with the verifier's own states, which come from a prefill of the same tokens.

    Results report all deviations; thresholds are applied later (`rollouts.toploc.thresholds`). Each interval has a
    result, even if its proof is missing or malformed; if there are more proofs than intervals, one more result reports
    the surplus.

    Args:
        states: (rows, hidden), as for `build`.
        proofs: The prover's proofs, one per interval.
        interval: Rows per proof.
        top_k: Points per proof.

    Raises:
        InvalidInput: The verifier's states are not a tensor of this form.
    """
    return verify_many([(states, proofs)], codec=PolynomialCodec(interval=interval, top_k=top_k))[0]


def proofs_of(states: torch.Tensor, *, codec: PolynomialCodec = TOPLOC) -> bytes:
    """Returns one sequence's proofs as files store them: `codec.proof_bytes`·⌈rows / interval⌉ bytes.

    Raises:
        InvalidInput: The states are not a (rows, hidden) tensor of floating point values.
        Unprovable: An interval has no valid proof in this format.
    """
    return b"".join(codec.build(stretches_of(states, codec.interval)))


def verify_rows(rows: Sequence[tuple[torch.Tensor, bytes]]) -> list[list[ProofResult]]:
    """Compares the concatenated proofs of many sequences at once; see `verify`.

    Args:
        rows: For each sequence the verifier's own states and the proofs in the file's row.

    Returns:
        The results of each row's intervals, in order.
    """
    return verify_many([(states, split(proofs, TOPLOC.proof_bytes)) for states, proofs in rows])


def verify_many(
    sequences: Sequence[tuple[torch.Tensor, Sequence[bytes]]], *, codec: PolynomialCodec = TOPLOC
) -> list[list[ProofResult]]:
    """Compares the proofs of many sequences at once, with each sequence's proofs as a list; see `verify`."""
    stretches = [stretches_of(states, codec.interval) for states, _ in sequences]
    counts = [sum(len(stretch) for stretch in of_one) for of_one in stretches]
    claimed = [
        [*proofs[:count], *[b""] * (count - len(proofs))] for (_, proofs), count in zip(sequences, counts, strict=True)
    ]
    compared = iter(codec.compare(list(chain.from_iterable(stretches)), list(chain.from_iterable(claimed))))
    results = []
    for (_, proofs), count in zip(sequences, counts, strict=True):
        of_one = [next(compared) for _ in range(count)]
        if len(proofs) < count:
            of_one[len(proofs) :] = [ProofResult.refused(Malformed.MISSING)] * (count - len(proofs))
        if len(proofs) > count:
            of_one.append(ProofResult.refused(Malformed.SURPLUS))
        results.append(of_one)
    return results
