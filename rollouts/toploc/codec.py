"""Interface of proof formats, so that others can be added beside TOPLOC's polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from protocol.errors import InvalidInput
from rollouts.toploc.results import ProofResult

_TAKEN = (torch.bfloat16, torch.float16, torch.float32)


class Codec(Protocol):
    """Builds proofs from chunks of hidden states and compares proofs with chunks.

    A chunk holds the states of one proof: at most `interval` rows of final hidden states, in step order, flattened. A
    stretch, (b, N), is b chunks of equal size that are contiguous in memory.
    """

    @property
    def name(self) -> str:
        """Name in files and calibrations; includes the parameters."""

    @property
    def interval(self) -> int:
        """Rows per proof; the last proof of a sequence may cover fewer."""

    @property
    def proof_bytes(self) -> int:
        """Length of every proof."""

    def build(
        self, stretches: Sequence[torch.Tensor], *, sizes: Sequence[Sequence[int] | None] | None = None
    ) -> list[bytes]:
        """Returns one proof per chunk.

        Args:
            stretches: (b, N) each.
            sizes: Number of valid values in each chunk of each stretch; None if all values are valid. Invalid values
                must be zero.
        """

    def compare(self, stretches: Sequence[torch.Tensor], proofs: Sequence[bytes]) -> list[ProofResult]:
        """Returns one result per chunk, each with its own proof. Never raises for malformed proofs."""


def stretches_of(states: torch.Tensor, interval: int) -> list[torch.Tensor]:
    """Splits a sequence's states, (rows, hidden), into its whole intervals and the shorter last one, if any.

    Raises:
        InvalidInput: `check_states` refuses the tensor.
    """
    check_states(states)
    rows, hidden = states.shape
    whole = rows // interval
    stretches = []
    if whole:
        stretches.append(states[: whole * interval].reshape(whole, interval * hidden))
    if rows % interval:
        stretches.append(states[whole * interval :].reshape(1, -1))
    return stretches


def check_states(states: torch.Tensor) -> None:
    """Raises `InvalidInput` unless the tensor is (rows, hidden) in a type that rounds to bfloat16 in one step."""
    if states.ndim != 2 or states.dtype not in _TAKEN or states.shape[1] == 0:
        raise InvalidInput(
            f"states of shape {tuple(states.shape)} and type {states.dtype}",
            hint="give (rows, hidden) in bfloat16, float16 or float32",
        )


def split(proofs: bytes, proof_bytes: int) -> list[bytes]:
    """Splits a sequence's concatenated proofs; an incomplete last one is kept, to be refused by its length."""
    return [proofs[start : start + proof_bytes] for start in range(0, len(proofs), proof_bytes)]
