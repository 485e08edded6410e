"""Proofs of sequences: built from their final hidden states, and verified against the verifier's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from rollouts.toploc.codec import Codec, split, stretches_of
from rollouts.toploc.polynomial import PolynomialCodec
from rollouts.toploc.results import Malformed, ProofResult

TOPLOC = PolynomialCodec()
"""The format of the network: 128 points for every 32 rows, 258 bytes."""


def build(states: torch.Tensor, *, interval: int = 32, top_k: int = 128) -> list[bytes]:
    """The proofs of one sequence.

    Args:
        states: (rows, hidden) final hidden states (post-norm, the input of the LM head), one row per output token, the
            one that produced the first token included; bfloat16, float16 or float32, on any device.
        interval: Rows per proof.
        top_k: Points per proof.

    Returns:
        ⌈rows / interval⌉ proofs of 2·(1 + top_k) bytes each.

    Raises:
        InvalidInput: The states are no such tensor.
        Unprovable: An interval has no proof in this format.
    """
    codec = PolynomialCodec(interval=interval, top_k=top_k)
    return codec.build(stretches_of(states, interval))


def verify(states: torch.Tensor, proofs: Sequence[bytes], *, interval: int = 32, top_k: int = 128) -> list[ProofResult]:
    """Compares one sequence's proofs with the verifier's own states, which come from a prefill of the same tokens.

    Total and strict: any bytes give a result and none is excused. Each interval has its result; where there are more
    proofs than intervals, one more result says so.

    Args:
        states: (rows, hidden), as for `build`.
        proofs: What the prover claims, one for each interval.
        interval: Rows per proof.
        top_k: Points per proof.

    Raises:
        InvalidInput: The verifier's own states are no such tensor.
    """
    return verify_many([(states, proofs)], codec=PolynomialCodec(interval=interval, top_k=top_k))[0]


def proofs_of(states: torch.Tensor, *, codec: Codec = TOPLOC) -> bytes:
    """One sequence's proofs as a file holds them: concatenated, `codec.proof_bytes`·⌈rows / interval⌉ bytes.

    Raises:
        InvalidInput: The states are no (rows, hidden) tensor of floating point values.
        Unprovable: An interval has no proof in this format.
    """
    return b"".join(codec.build(stretches_of(states, codec.interval)))


def verify_rows(rows: Sequence[tuple[torch.Tensor, bytes]], *, codec: Codec = TOPLOC) -> list[list[ProofResult]]:
    """Compares the proofs of many sequences at once, each as a file's row holds them; see `verify`.

    Args:
        rows: The verifier's own states of a sequence, and the concatenated proofs that came with it.
        codec: The format that the file names.

    Returns:
        The results of each row's intervals, in order.
    """
    return verify_many([(states, split(proofs, codec.proof_bytes)) for states, proofs in rows], codec=codec)


def verify_many(
    sequences: Sequence[tuple[torch.Tensor, Sequence[bytes]]], *, codec: Codec = TOPLOC
) -> list[list[ProofResult]]:
    """As `verify_rows`, with each sequence's proofs apart."""
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
