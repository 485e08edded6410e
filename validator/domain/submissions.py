"""Submissions as the ledger's events report them, with the facts that determine the seed of each slot."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from ledger.client.work import WorkRecord
from ledger.events.types import WorkSubmitted
from protocol.identifiers import Address, Digest
from protocol.leases import Lease
from protocol.wire.slots import SlotGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedWork:
    """One `WorkSubmitted` event, in the form that the queue stores.

    Args:
        key: The work key.
        pool_id: Id of the pool.
        node: Address of the node.
        run: Id of the run.
        step: Training step of the slot.
        index: Number of the slot among the slots that this node has in this step.
        version: Version of the policy for which the slot was leased.
        checkpoint: Digest of that version.
        beacon_block: Number of the beacon block that the lease names; its hash is part of the slot's seed.
        salt: Salt of the lease, which is part of the slot's seed.
        groups: Number of groups in the slot.
        max_units: Maximum work units of the lease.
        sha256: SHA-256 of the submitted file.
        units: Claimed work units.
        block: Number of the block in which the work was submitted.
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
        """Returns True if a work record belongs to this submission; after a reorg, it may belong to another one."""
        return (self.sha256, self.units) == (work.sha256, work.units)

    @classmethod
    def of(cls, event: WorkSubmitted) -> Self:
        """Returns the submission that an event reports."""
        same = {field.name: getattr(event, field.name) for field in fields(cls) if field.name != "block"}
        return cls(**same, block=event.log.block_number)

    @classmethod
    def under(cls, lease: Lease, *, sha256: Digest, units: int, block: int) -> Self:
        """Returns the submission of a file under a lease."""
        same = {each.name: getattr(lease, each.name) for each in fields(lease) if each.name not in {"digest", "expiry"}}
        return cls(**same, key=lease.key.hash, checkpoint=lease.digest, sha256=sha256, units=units, block=block)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFacts:
    """Facts of a submission that do not depend on its file.

    Args:
        work: The submission, with the data of its lease.
        chain_id: Id of the chain.
        work_ledger: Address of the contract that the lease is for.
        beacon: Hash of the beacon block that the lease names.
    """

    work: SubmittedWork
    chain_id: int
    work_ledger: Address
    beacon: Digest

    @classmethod
    def granted(cls, grant: SlotGrant, *, sha256: Digest, units: int) -> Self:
        """Returns the facts of a file that was made for a lease, without a ledger; for measurements."""
        signed = grant.lease
        work = SubmittedWork.under(signed.lease, sha256=sha256, units=units, block=signed.beacon_block + 1)
        return cls(work=work, chain_id=signed.chain_id, work_ledger=signed.contract, beacon=grant.beacon)
