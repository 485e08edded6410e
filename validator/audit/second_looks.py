"""Second looks: which verdicts of others are examined again, and when a difference is disputed. No I/O.

A second look is a whole examination with every row computed again. It goes both ways: at work that was accepted, lest a
validator pays for forgery, and at work that was rejected or called forged, lest a node pays for a validator's mistake.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from ledger.client.work import WorkRecord
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome

TAG = b"muster-second-look-v1"
"""Keeps this use of an epoch's secret apart from the draw of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPolicy:
    """Shares of other validators' provisional verdicts that get a second look.

    Args:
        accepted: Of those that accept, 0 to 1.
        rejected: Of those that reject, 0 to 1. More, because they are few and cost a node its pay.
        forged: Of those that say forged, 0 to 1. All, because the node loses stake and membership: otherwise one
            corrupt validator could slash each node that does not watch its own verdicts.
    """

    accepted: float = 0.05
    rejected: float = 0.25
    forged: float = 1.0

    def share(self, outcome: Outcome) -> float:
        """The share for a verdict's outcome."""
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
    """Returns whether a second look's finding is worth a dispute: it is certain, or unjust to the node.

    Forgery that another did not see is disputed, and so is a refusal of work that is clean. A mere rejection rests on
    measurements near their limits, where honest validators may differ; the doubt is the node's.
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
