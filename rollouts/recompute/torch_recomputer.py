"""Recomputation by torch in this process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from rollouts.checks import Draws, RowEvidence, gather
from rollouts.files.samples import RolloutFile
from rollouts.models.policy import Policy
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.prefill import usual_tokens

OTHER_SHAPE = 3
"""Factor by which the passes of `again` have fewer tokens than those of `evidence`.

Each row then has other neighbours in its pass, and the matrix products have other sizes.
"""
NOISY = 2
"""Number of further passes of `again` with noise on their inputs, if generator and verifier compute in float32.

In a model with sharp attention, rounding may change the score of a single token by much, and two passes may agree on
that score by chance. More passes show the true spread; decision 58 has the figures.
"""
FLOAT32_SPREAD = 16.0
"""`spread_factor` if generator and verifier compute in float32.

Measured ratios of an honest row's difference to the verifier's own spread: at most 2.5 in 480 rows of a model whose
query and key weights are twenty times too large, and 8.6 in one row of 120,000.
"""
MEASURED_SPREAD = 2.0
"""`spread_factor` for other data types. It equals `CheckLimits.headroom` of the shipped calibrations, the factor by
which limits exceed the measured honest files."""


class TorchRecomputer:
    """A `Recomputer` on torch.

    Args:
        policy: The loaded version.
        made_in: Data type in which the nodes generated the files.
    """

    def __init__(self, policy: Policy, *, made_in: Dtype) -> None:
        self._policy = policy
        self._float32 = made_in is Dtype.FLOAT32 and policy.dtype is torch.float32

    @property
    def arithmetic(self) -> Arithmetic:
        """Torch and the data type of the policy."""
        dtype = Dtype.FLOAT32 if self._policy.dtype is torch.float32 else Dtype.BFLOAT16
        return Arithmetic(engine=EngineName.TORCH, dtype=dtype)

    @property
    def spread_factor(self) -> float:
        """See `Recomputer.spread_factor`."""
        return FLOAT32_SPREAD if self._float32 else MEASURED_SPREAD

    def evidence(self, file: RolloutFile, rows: Mapping[int, Draws]) -> dict[int, RowEvidence]:
        """Recomputes rows of a file: see `Recomputer.evidence`."""
        return gather(self._policy, file, rows) if rows else {}

    def renew(self) -> None:
        """Does nothing: the passes of `again` have other arithmetic."""

    def again(
        self, file: RolloutFile, rows: Mapping[int, Draws], alone: Collection[int]
    ) -> list[dict[int, RowEvidence]]:
        """Recomputes the rows with the plain attention kernel, in reversed order and in smaller passes."""
        size = max(1, usual_tokens(self._policy.device) // OTHER_SHAPE)

        def of(some: Sequence[int]) -> dict[int, RowEvidence]:
            return gather(self._policy, file, {row: rows[row] for row in some}, tokens_at_once=size)

        with self._policy.other_arithmetic():
            packed = [row for row in sorted(rows, reverse=True) if row not in alone]
            second = of(packed) if packed else {}
            for row in sorted(alone):
                second |= of([row])
        passes = [second]
        for noise_seed in range(NOISY if self._float32 else 0):
            with self._policy.other_arithmetic(noise_seed=noise_seed):
                passes.append(of(sorted(rows)))
        return passes
