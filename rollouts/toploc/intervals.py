"""Splits a sequence's states into proof intervals, and its concatenated proofs into single proofs."""

from __future__ import annotations

import torch

from protocol.errors import InvalidInput

_TAKEN = (torch.bfloat16, torch.float16, torch.float32)


def stretches_of(states: torch.Tensor, interval: int) -> list[torch.Tensor]:
    """Splits a sequence's states, (rows, hidden), into whole intervals and the shorter last interval, if any.

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
            f"proofs can't be built from states of shape {tuple(states.shape)} and type {states.dtype}",
            hint="give (rows, hidden) in bfloat16, float16 or float32",
        )


def split(proofs: bytes, proof_bytes: int) -> list[bytes]:
    """Splits a sequence's proofs; an incomplete last proof remains, and `compare` refuses it."""
    return [proofs[start : start + proof_bytes] for start in range(0, len(proofs), proof_bytes)]
