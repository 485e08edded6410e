"""What a validator judges: a piece of work as the ledger and its lease tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ledger.client.work import Work
from ledger.events import WorkSubmitted
from protocol.identifiers import Address, Digest
from protocol.leases import Lease


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
        sha256: Of the file, as submitted.
        units: Work units that are claimed.
        block: The block of the submission.
        transaction: The transaction of the submission.
    """

    key: Digest
    pool_id: int
    node: Address
    run: Digest
    step: int
    index: int
    version: int
    checkpoint: Digest
    sha256: Digest
    units: int
    block: int
    transaction: Digest

    def is_what(self, work: Work) -> bool:
        """Whether this is what the ledger has under the key: a reorganisation may have put something else there."""
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
            sha256=event.sha256,
            units=event.units,
            block=event.log.block_number,
            transaction=event.log.transaction,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFacts:
    """What is true of a submission, whatever its file says.

    Args:
        work: The submission.
        lease: The one that it was submitted under, signed by the pool's orchestrator; None if the transaction went
            through another contract, so that only what `work` says is known.
        beacons: Hashes of the blocks that the slot's seed may stand on, the likeliest first, each with its number. One,
            where the node joined once; else one for each of its joinings that may have counted.
        named: Whether the first of them is the one that the orchestrator names, and it alone is paid for: else a node
            could choose. But it is only the orchestrator's word, so nobody is slashed by it.
        groups: How many groups the orchestrator says that the slot has; None if it says nothing. It counts where there
            is no lease, and nobody is slashed by it either.
    """

    work: SubmittedWork
    lease: Lease | None
    beacons: tuple[tuple[int, Digest], ...]
    named: bool = False
    groups: int | None = None
