"""Submissions: pieces of work with the facts of ledger and lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ledger.client.work import WorkRecord
from ledger.events.types import WorkSubmitted
from protocol.identifiers import Address, Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedWork:
    """One `WorkSubmitted`, as a queue carries it.

    Args:
        key: The work key.
        pool_id: The pool.
        node: Whose work it is.
        run: Id of the run.
        step: Which step the slot is of.
        index: The slot's number among this node's slots of the step.
        version: The policy that the slot was leased for.
        checkpoint: Its version digest.
        beacon_block: The block whose hash is part of the slot's seed, as the lease names it.
        salt: The lease's part of the seed.
        groups: The number of groups in the slot.
        max_units: The most work units of the lease.
        sha256: Of the file, as submitted.
        units: Work units that are claimed.
        block: The block of the submission.
    """

    key: Digest
    pool_id: int
    node: Address
    run: Digest
    step: int
    index: int
    version: int
    checkpoint: Digest
    beacon_block: int
    salt: Digest
    groups: int
    max_units: int
    sha256: Digest
    units: int
    block: int

    def is_what(self, work: WorkRecord) -> bool:
        """Returns whether the ledger has this submission under the key; a reorg may have replaced it."""
        return (self.sha256, self.units) == (work.sha256, work.units)

    @classmethod
    def of(cls, event: WorkSubmitted) -> Self:
        """The submission that an event tells of."""
        return cls(
            key=event.key,
            pool_id=event.pool_id,
            node=event.node,
            run=event.run,
            step=event.step,
            index=event.index,
            version=event.version,
            checkpoint=event.checkpoint,
            beacon_block=event.beacon_block,
            salt=event.salt,
            groups=event.groups,
            max_units=event.max_units,
            sha256=event.sha256,
            units=event.units,
            block=event.log.block_number,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFacts:
    """Facts of a submission that do not depend on its file.

    Args:
        work: The submission, with everything that its lease says.
        chain_id: The chain that it stands on.
        beacon: The hash of the block that its lease names.
    """

    work: SubmittedWork
    chain_id: int
    beacon: Digest
