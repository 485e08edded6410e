"""Tells a forged file from one that equals the honest file by chance.

In a file of few short answers, another temperature may draw the same tokens, the first of several samples may be the
best in every group, or no reward may be left to change. Such a file equals the honest file to the byte. Validators
rightly accept it, and the detection rate does not count it as a forgery.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import write_rollouts
from tests.kit.attack_harness import HandedIn


class Compared(Trick):
    """A trick that also makes the honest file of the same slot.

    Args:
        trick: Behaviour of the node.
    """

    def __init__(self, trick: Trick) -> None:
        self._trick = trick
        self._honest: tuple[RolloutFile, ...] = ()

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile | None:
        """Returns the trick's file, and stores the honest files to compare it with.

        There are two honest files: one has the proofs and log-probabilities of the engine, the other those of a
        prefill, because some attacks compute their proofs and log-probabilities by a prefill. Both are valid; they
        differ in the last bits.
        """
        file, honest = self._trick.make(toolkit, grant), toolkit.file(grant)
        if file is not None:
            # The comparison ignores the claimed engine.
            header = replace(honest.header, arithmetic=file.header.arithmetic)
            self._honest = tuple(RolloutFile(header, one.samples) for one in (honest, toolkit.proven(honest)))
        return file

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes the trick's bytes."""
        self._trick.write(path, file)

    def units(self, file: RolloutFile) -> int:
        """Returns the claimed work units."""
        return self._trick.units(file)

    def forged(self, work: HandedIn) -> bool:
        """Returns whether the last submission differs from the honest file with an honest claim."""
        made = work.path.read_bytes()
        return work.units != self._honest[0].units or all(made != _bytes(one, work.path) for one in self._honest)


def _bytes(file: RolloutFile, near: Path) -> bytes:
    path = near.with_suffix(".honest")
    write_rollouts(path, file)
    try:
        return path.read_bytes()
    finally:
        path.unlink()
