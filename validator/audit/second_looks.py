"""Second looks: selection of other validators' verdicts to examine again, and the decision to dispute. No I/O.

A second look is a complete examination that recomputes every row. Accepted work is checked so that forgery is not paid;
rejected and forged work is checked so that nodes don't pay for a validator's mistake.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from ledger.client.work import WorkRecord
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome

TAG = b"muster-second-look-v1"
"""Domain separation tag: distinguishes this use of an epoch's secret from the draw of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPolicy:
    """Shares of other validators' provisional verdicts that get a second look.

    Args:
        accepted: Share of acceptances, 0 to 1.
        rejected: Share of rejections, 0 to 1; larger by default, because they are few and cost a node its pay.
        forged: Share of forgery verdicts, 0 to 1; all by default, because the node loses stake and membership, and one
            corrupt validator could otherwise slash each node that does not watch its own verdicts.
    """

    accepted: float = 0.05
    rejected: float = 0.25
    forged: float = 1.0

    def share(self, outcome: Outcome) -> float:
        """Returns the share for a verdict's outcome."""
        match outcome:
            case Outcome.ACCEPTED:
                return self.accepted
            case Outcome.REJECTED:
                return self.rejected
            case Outcome.FORGED:
                return self.forged


def is_chosen(secret: bytes, key: Digest, share: float) -> bool:
    """Returns whether a verdict is drawn for a second look, by a secret that its validator did not know.

    Args:
        secret: 32 bytes that only this validator knows.
        key: The work key.
        share: Probability, 0 to 1.
    """
    drawn = hmac.digest(secret, TAG + bytes.fromhex(key[2:]), hashlib.sha256)
    return int.from_bytes(drawn[:6], "big") < share * (1 << 48)


def contradicts(first: Outcome, own: Outcome) -> bool:
    """Returns whether to dispute a verdict because of a second look's finding.

    Missed forgery is disputed, and so is a rejection of clean work. An acceptance of work that this validator would
    only reject is not: rejections depend on measurements near their limits, where honest validators may differ.
    """
    match own:
        case Outcome.FORGED:
            return first is not Outcome.FORGED
        case Outcome.ACCEPTED:
            return first is not Outcome.ACCEPTED
        case Outcome.REJECTED:
            return first is Outcome.FORGED


def may_decide(me: Address, work: WorkRecord) -> bool:
    """Returns whether `me` may decide a dispute: it is no party and has not judged the work (decision 55)."""
    return me not in {work.judge, work.looker, work.disputer, work.juror, work.node, work.provider}
