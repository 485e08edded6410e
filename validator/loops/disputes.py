"""What follows from a second look: nothing, or a dispute with this validator's own findings as the evidence."""

from __future__ import annotations

from enum import StrEnum

import structlog

from ledger.client import Ledger
from ledger.client.work import WorkStatus
from ledger.errors import TransactionReverted
from protocol.identifiers import Digest
from protocol.verdicts import Outcome
from validator.audit.second_looks import contradicts

_log = structlog.get_logger(__name__)


class Followed(StrEnum):
    """What became of a second look."""

    AGREES = "agrees"
    """The verdict stands, as far as this validator can say."""
    DISPUTED = "disputed"
    OVER = "over"
    """The verdict can't be disputed any more, or somebody else did."""
    OWN = "own"
    """The verdict is this validator's own, and can't be taken back."""


async def follow_up(ledger: Ledger, key: Digest, own: Outcome, audit_hash: Digest) -> Followed:
    """Disputes a verdict that a second look contradicts; may be called again after a crash.

    Args:
        ledger: Holds this validator's key.
        key: The work.
        own: What this validator found, every row computed again.
        audit_hash: Of its audit file, which is in the object store already.

    Raises:
        ChainUnavailable: The chain can't be asked.
        TransactionNotMined: The dispute may be on the ledger or not; call again.
    """
    work = await ledger.work.get(key)
    if work is None or work.outcome is None or work.status is not WorkStatus.PROVISIONAL:
        mine = work is not None and work.disputer == ledger.address
        return Followed.DISPUTED if mine else Followed.OVER
    if work.judge == ledger.address:
        _log.warning("own-verdict-wrong", work=key, gave=work.outcome.name, found=own.name)
        return Followed.OWN
    if not contradicts(work.outcome, own):
        return Followed.AGREES
    try:
        await ledger.work.dispute(key, audit_hash)
    except TransactionReverted as error:
        if error.name not in {"WrongStatus", "TooLate"}:
            raise
        return Followed.OVER  # somebody else was faster, or it was too late
    _log.info("verdict-disputed", work=key, judge=work.judge, gave=work.outcome.name, found=own.name)
    return Followed.DISPUTED
