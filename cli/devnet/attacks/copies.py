"""Attacks that submit work again, or submit another node's work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.proofs import other_node
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile
from rollouts.files.schema import write_rollouts


class Replayed(Trick):
    """Works on one slot, and submits the identical file for all later slots."""

    def __init__(self) -> None:
        self._first: RolloutFile | None = None

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the first slot's samples with the present slot's header.

        The header must be the present slot's, because the worker finds the lease by it. `write` then writes the first
        file instead.
        """
        self._first = self._first or toolkit.file(grant)
        return _renamed(self._first, grant)

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes the bytes of the first file."""
        write_rollouts(path, self._first or file)


class Reencoded(Replayed):
    """Works on one slot, and submits its samples for all later slots, under each new slot's header."""

    def write(self, path: Path, file: RolloutFile) -> None:
        """Writes the first slot's samples under the new slot's header."""
        write_rollouts(path, file)


class SameAsAnother(Trick):
    """Submits the rollouts of another node of the same owner as its own."""

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the other node's samples under a header that names this node."""
        return _renamed(toolkit.file(other_node(grant)), grant)


def _renamed(file: RolloutFile, grant: SlotGrant) -> RolloutFile:
    """Returns the samples of `file` under the header of the granted slot."""
    lease = grant.lease.lease
    header = replace(
        file.header, run=lease.run, step=lease.step, index=lease.index, node=lease.node, checkpoint=lease.digest
    )
    return RolloutFile(header, file.samples)
