"""Recomputation of a numerics class by vLLM of the same class."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rollouts.checks import RowEvidence
from rollouts.files.samples import RolloutFile
from rollouts.precision import Arithmetic
from rollouts.recompute.vllm_process import VllmProcess
from rollouts.sampling.parameters import SamplingParameters


class VllmRecomputer:
    """A `Recomputer` on vLLM. Its passes compute the same bits in every batch.

    Args:
        process: A process that has loaded the version.
    """

    def __init__(self, process: VllmProcess) -> None:
        self._process = process

    @property
    def arithmetic(self) -> Arithmetic:
        """The numerics class."""
        return self._process.arithmetic

    @property
    def spread_factor(self) -> float:
        """Always 0: if two passes differ, this machine does not reproduce the class; no row is excused for that."""
        return 0.0

    def evidence(
        self, file: RolloutFile, rows: Sequence[int], *, seed: bytes | None, parameters: SamplingParameters
    ) -> dict[int, RowEvidence]:
        """Recomputes rows of a file: see `Recomputer.evidence`."""
        return self._process.compare(file, rows, seed=seed, parameters=parameters)

    def again(
        self,
        file: RolloutFile,
        rows: Sequence[int],
        alone: Collection[int],
        *,
        seed: bytes | None,
        parameters: SamplingParameters,
    ) -> list[dict[int, RowEvidence]]:
        """Recomputes the rows in reversed order, and some of them alone."""
        packed = [row for row in sorted(rows, reverse=True) if row not in alone]
        second = self._process.compare(file, packed, seed=seed, parameters=parameters)
        for row in sorted(alone):
            second |= self._process.compare(file, [row], seed=seed, parameters=parameters)
        return [second]
