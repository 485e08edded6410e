"""Interface of recomputation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from rollouts.checks import Draws, RowEvidence
from rollouts.files.samples import RolloutFile
from rollouts.precision import Arithmetic


class Recomputer(Protocol):
    """Computes evidence for rows of files of one policy version."""

    @property
    def arithmetic(self) -> Arithmetic:
        """Engine and data type of the computation, or its numerics class."""

    @property
    def spread_factor(self) -> float:
        """An honest row may differ by this factor times the largest difference between the passes of `again`."""

    def evidence(self, file: RolloutFile, rows: Mapping[int, Draws]) -> dict[int, RowEvidence]:
        """Recomputes rows of a file. Rows share passes, also those of different seeds and sampling parameters.

        Args:
            file: A file whose tokens fit the model's vocabulary and context.
            rows: Row numbers, each with the row's seed and sampling parameters.

        Raises:
            InvalidInput: A row does not fit the model.
            EngineFailed: The engine crashed, or its logits contain NaN or infinity.
        """

    def renew(self) -> None:
        """Prepares the passes of `again`, whose results must not depend on the state of the passes before.

        Raises:
            ClassFailed: This machine no longer computes in the numerics class.
            EngineFailed: The engine can't be started.
        """

    def again(
        self,
        file: RolloutFile,
        rows: Mapping[int, Draws],
        alone: Collection[int],
    ) -> list[dict[int, RowEvidence]]:
        """Recomputes rows of `evidence` in several other passes, to measure this machine's own rounding; after `renew`.

        The result has one item per pass. A validator also judges the file by the first of these passes.

        Args:
            file: As for `evidence`.
            rows: As for `evidence`.
            alone: Rows that get a pass of their own.

        Raises:
            ClassFailed: The passes differ, although they must be equal in a numerics class.
            EngineFailed: As for `evidence`.
        """
