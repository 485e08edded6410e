"""Recomputation of a numerics class by vLLM of the same class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from protocol.identifiers import Digest
from rollouts.checks import Draws, RowEvidence
from rollouts.files.samples import RolloutFile
from rollouts.precision import Arithmetic
from rollouts.recompute.errors import NumericsUnstable, starting
from rollouts.recompute.reference import prove
from rollouts.recompute.vllm_process import VllmProcess


class VllmRecomputer:
    """A `Recomputer` on vLLM, for one file. Its passes compute the same bits in every batch and every process.

    Args:
        process: A process that has loaded the version.
        folder: Folder of the version.
        version: Digest of the version.
    """

    def __init__(self, process: VllmProcess, *, folder: Path, version: Digest) -> None:
        self._process = process
        self._folder = folder
        self._version = version
        self._first: dict[int, RowEvidence] = {}
        """Results of `evidence` by row."""

    @property
    def arithmetic(self) -> Arithmetic:
        """The numerics class."""
        return self._process.arithmetic

    @property
    def spread_factor(self) -> float:
        """Always 0: if two passes differ, this machine does not reproduce the class; no row is excused for that."""
        return 0.0

    def evidence(self, file: RolloutFile, rows: Mapping[int, Draws]) -> dict[int, RowEvidence]:
        """Recomputes rows of a file: see `Recomputer.evidence`."""
        found = self._process.compare(file, rows)
        self._first |= found
        return found

    def renew(self) -> None:
        """Starts a new process in place of the first, which may have replaced weights in place for days.

        So the results of the first process alone accuse nobody. The new process reproduces the recording of the class
        and loads the version from its folder.

        Raises:
            ClassNotReproduced: The new process does not start in the class, or does not reproduce the recording.
            EngineFailed: vLLM failed.
        """
        with starting(self.arithmetic):
            self._process.restart()
        try:
            prove(self._process)
            self._process.load(self._folder, version=self._version)
        except BaseException:
            self._process.close()
            raise

    def again(
        self, file: RolloutFile, rows: Mapping[int, Draws], alone: Collection[int]
    ) -> list[dict[int, RowEvidence]]:
        """Recomputes the rows in reversed order, and some of them alone.

        Raises:
            NumericsUnstable: A row differs from its `evidence`. The process is ended.
            EngineFailed: vLLM failed.
        """
        packed = {row: rows[row] for row in sorted(rows, reverse=True) if row not in alone}
        second = self._process.compare(file, packed)
        for row in sorted(alone):
            second |= self._process.compare(file, {row: rows[row]})
        for row in sorted(rows):
            if not second[row].same_bits(self._first[row]):
                self._process.close()
                raise NumericsUnstable(
                    f"two processes of {self.arithmetic} differ in row {row}, but must be equal to the bit",
                    arithmetic=self.arithmetic,
                )
        return [second]
