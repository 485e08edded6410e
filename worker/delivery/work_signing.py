"""Signs a queued file as work under a lease, and checks the queue's copy of a file."""

from __future__ import annotations

import hashlib
import os

from pydantic import ValidationError

from protocol.errors import plain_message
from protocol.identifiers import digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import WorkClaim
from protocol.wire.base import WireModel
from protocol.wire.leases import SignedLease, SignedWorkClaim
from protocol.wire.runs import Figures, Units
from worker.delivery.queue.item import QueueItem
from worker.delivery.queue.runner import GivenUp

LEASED_WORK = "work"
"""Metadata key under which the bridge stores a `LeasedWork` as JSON. Tasks can't set it."""


class LeasedWork(WireModel):
    """Lease, work units and metrics of a rollout file.

    The bridge writes this object when a task adds the file; the delivery reads it.
    """

    lease: SignedLease
    units: Units
    figures: Figures = {}


def sign_work(item: QueueItem, *, key: Key, pool_id: int, domain: SigningDomain) -> SignedWorkClaim | None:
    """Returns the signed work claim for a file; None if the file is not work.

    The result is the same on every call.

    Args:
        item: Queue item whose hash is known.
        key: The node's key.
        pool_id: Number of the node's pool.
        domain: EIP-712 domain of the `WorkLedger` contract.

    Raises:
        GivenUp: The lease is not valid for this node, pool, contract or number of units.
    """
    if LEASED_WORK not in item.metadata:
        return None
    work = leased(item)
    lease = work.lease
    wrong = (
        (lease.node != key.address, f"its lease is for another node, {lease.node}"),
        (lease.pool_id != pool_id, f"its lease is from pool {lease.pool_id}, not from pool {pool_id}"),
        (lease.domain != domain, f"its lease is for contract {lease.contract} on chain {lease.chain_id}"),
        (work.units > lease.max_units, f"it claims {work.units} units, but its lease allows {lease.max_units}"),
    )
    for is_so, what in wrong:
        if is_so:
            raise GivenUp(what)
    sha256 = item.known_sha256
    signature = WorkClaim(lease_hash=lease.lease.hash, sha256=sha256, units=work.units).sign(key, domain)
    return SignedWorkClaim(lease=lease, sha256=sha256, units=work.units, signature="0x" + signature.hex())


def leased(item: QueueItem) -> LeasedWork:
    """Returns the lease, work units and metrics of a file that is work.

    Raises:
        GivenUp: The stored data can't be parsed.
    """
    try:
        return LeasedWork.model_validate_json(item.metadata[LEASED_WORK])
    except ValidationError as error:
        # pydantic's message gives the cause, for example a lease for an earlier contract version.
        because = plain_message(error.errors()[0]["msg"])
        raise GivenUp(f"the stored lease of this file can't be read: {because}") from error


def check_copy(item: QueueItem, *, thoroughly: bool) -> None:
    """Checks that the queue's copy of a file has not changed since it was hashed.

    Args:
        item: Queue item whose hash is known.
        thoroughly: Whether the SHA-256 is compared too, not only the size.

    Raises:
        GivenUp: The copy was changed or removed.
    """
    try:
        with item.path.open("rb") as file:
            right = os.fstat(file.fileno()).st_size == item.size
            if right and thoroughly:
                right = digest(hashlib.file_digest(file, "sha256").digest()) == item.sha256
    except FileNotFoundError:
        raise GivenUp("the copy in the worker's spool is missing") from None
    if not right:
        raise GivenUp("the copy in the worker's spool was changed or damaged")
