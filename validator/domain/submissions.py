"""Submissions with their facts from the ledger."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from ledger.client.work import WorkRecord
from ledger.events.types import WorkSubmitted
from protocol.identifiers import Address, Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedWork:
    """One `WorkSubmitted` event, in the form that the queue stores.

    Args:
        key: The work key.
        pool_id: The pool.
        node: The node.
        run: Id of the run.
        step: Step of the slot.
        index: Number of the slot among this node's slots of the step.
        version: Version of the policy for which the slot was leased.
        checkpoint: Digest of that version.
        beacon_block: Block whose hash is part of the slot's seed, as the lease names it.
        salt: Part of the seed from the lease.
        groups: Number of groups in the slot.
        max_units: Maximum work units of the lease.
        sha256: SHA-256 of the submitted file.
        units: Claimed work units.
        block: Block of the submission.
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

    def matches(self, work: WorkRecord) -> bool:
        """Returns whether the ledger has this submission under the key; a reorg may have replaced it."""
        return (self.sha256, self.units) == (work.sha256, work.units)

    @classmethod
    def of(cls, event: WorkSubmitted) -> Self:
        """Returns the submission of an event."""
        same = {field.name: getattr(event, field.name) for field in fields(cls) if field.name != "block"}
        return cls(**same, block=event.log.block_number)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFacts:
    """Facts of a submission that do not depend on its file.

    Args:
        work: The submission, with the data of its lease.
        chain_id: Id of its chain.
        beacon: Hash of the block that its lease names.
    """

    work: SubmittedWork
    chain_id: int
    beacon: Digest
