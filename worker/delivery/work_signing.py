"""A file in the queue as this node's work: its lease, the node's word for it, and the copy that the word is about."""

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
"""The key of a queue item's metadata under which the bridge leaves a `LeasedWork` as JSON; no task can write it."""


class LeasedWork(WireModel):
    """What the delivery needs to submit a file: the bridge writes it, the worker's queue carries it."""

    lease: SignedLease
    units: Units
    figures: Figures = {}


def sign_work(item: QueueItem, *, key: Key, pool_id: int, domain: SigningDomain) -> SignedWorkClaim | None:
    """The node's word for the file as its work; None for a file that is none. The same each time.

    Args:
        item: Hashed already.
        key: The node's.
        pool_id: The pool that it works for.
        domain: The contract that takes work.

    Raises:
        GivenUp: The lease is not one that this node can work under.
    """
    if LEASED_WORK not in item.metadata:
        return None
    work = leased(item)
    lease = work.lease
    wrong = (
        (lease.node != key.address, f"its lease is another node's, {lease.node}"),
        (lease.pool_id != pool_id, f"its lease is of pool {lease.pool_id}, not of pool {pool_id}"),
        (lease.domain != domain, f"its lease is for contract {lease.contract} on chain {lease.chain_id}"),
        (work.units > lease.max_units, f"it claims {work.units} units, its lease allows {lease.max_units}"),
    )
    for is_so, what in wrong:
        if is_so:
            raise GivenUp(what)
    sha256 = digest(item.sha256)
    signature = WorkClaim(lease_hash=lease.lease.hash, sha256=sha256, units=work.units).sign(key, domain)
    return SignedWorkClaim(lease=lease, sha256=sha256, units=work.units, signature="0x" + signature.hex())


def leased(item: QueueItem) -> LeasedWork:
    """Under which lease the file was made.

    Raises:
        GivenUp: It can't be read; the bridge wrote it, so that is damage.
    """
    try:
        return LeasedWork.model_validate_json(item.metadata[LEASED_WORK])
    except ValidationError as error:
        # A lease of a former contract version is refused in its own words.
        because = plain_message(error.errors()[0]["msg"])
        raise GivenUp(f"what the worker noted about its lease can't be read: {because}") from error


def check_copy(item: QueueItem, *, thoroughly: bool) -> None:
    """Returns if the copy in the spool is what was hashed.

    Args:
        item: Hashed already.
        thoroughly: Hash it again, instead of looking at its size only.

    Raises:
        GivenUp: Something on this machine damaged or removed it.
    """
    try:
        with item.path.open("rb") as file:
            right = os.fstat(file.fileno()).st_size == item.size
            if right and thoroughly:
                right = "0x" + hashlib.file_digest(file, "sha256").hexdigest() == item.sha256
    except FileNotFoundError:
        raise GivenUp("its copy is gone from the worker's spool") from None
    if not right:
        raise GivenUp("its copy in the worker's spool was changed or damaged")
