"""What a proof format does, so that another one can stand beside TOPLOC's polynomials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from protocol.errors import InvalidInput
from rollouts.toploc.results import ProofResult

_TAKEN = (torch.bfloat16, torch.float16, torch.float32)


class Codec(Protocol):
    """Turns chunks of states into proofs, and compares proofs with chunks.

    A chunk is what one proof is about: at most `interval` rows of final hidden states, in step order, flattened. A
    stretch, (b, N), is b chunks of equal size that lie together in memory.
    """

    @property
    def name(self) -> str:
        """What files and calibrations call it, its parameters included."""

    @property
    def interval(self) -> int:
        """Rows per proof; the last proof of a sequence may be about fewer."""

    @property
    def proof_bytes(self) -> int:
        """The length of every proof."""

    def build(
        self, stretches: Sequence[torch.Tensor], *, sizes: Sequence[Sequence[int] | None] | None = None
    ) -> list[bytes]:
        """One proof per chunk.

        Args:
            stretches: (b, N) each.
            sizes: For each stretch, how many values of each chunk count, if not all; the others must be zero.
        """

    def compare(self, stretches: Sequence[torch.Tensor], proofs: Sequence[bytes]) -> list[ProofResult]:
        """One result per chunk, each with a proof of its own. Total: any bytes give a result."""


def stretches_of(states: torch.Tensor, interval: int) -> list[torch.Tensor]:
    """A sequence's states, (rows, hidden), as its whole intervals and, where there is one, its short last one.

    Raises:
        InvalidInput: They are no such tensor.
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
    """Raises `InvalidInput` unless they are (rows, hidden) of a type that bfloat16 can be had from in one rounding."""
    if states.ndim != 2 or states.dtype not in _TAKEN or states.shape[1] == 0:
        raise InvalidInput(
            f"states of shape {tuple(states.shape)} and type {states.dtype}",
            hint="give (rows, hidden) in bfloat16, float16 or float32",
        )


def split(proofs: bytes, proof_bytes: int) -> list[bytes]:
    """A sequence's concatenated proofs, apart. A rest that is no whole proof stays as it is, to be refused as such."""
    return [proofs[start : start + proof_bytes] for start in range(0, len(proofs), proof_bytes)]
