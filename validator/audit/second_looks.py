"""Second looks: selection of other validators' verdicts to examine again, and the decision to dispute. No I/O.

A second look is a complete examination that recomputes every row. Second looks at acceptances find forged work before
it is paid; second looks at rejections and forgery verdicts protect nodes from a validator's mistakes.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from ledger.client.work import WorkRecord
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome

TAG = b"muster-second-look-v1"
"""Domain separation tag, which separates this use of an epoch's secret from the draw of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPolicy:
    """Shares of other validators' provisional verdicts that get a second look.

    Args:
        accepted: Share of acceptances, 0 to 1.
        rejected: Share of rejections, 0 to 1; larger by default, because rejections are few and cost a node its pay.
        forged: Share of forgery verdicts, 0 to 1; all by default, because the node loses stake and membership. Without
            these second looks, one corrupt validator could slash every node that does not dispute verdicts on its own
            work.
    """

    accepted: float = 0.05
    rejected: float = 0.25
    forged: float = 1.0

    def share(self, outcome: Outcome) -> float:
        """Returns the share of verdicts with this outcome that get a second look."""
        match outcome:
            case Outcome.ACCEPTED:
                return self.accepted
            case Outcome.REJECTED:
                return self.rejected
            case Outcome.FORGED:
                return self.forged


def is_chosen(secret: bytes, key: Digest, share: float) -> bool:
    """Returns True if a secret that the verdict's author did not know draws the verdict for a second look.

    Args:
        secret: Secret of 32 bytes that only this validator knows.
        key: The work key.
        share: Probability of being drawn, 0 to 1.
    """
    drawn = hmac.digest(secret, TAG + bytes.fromhex(key[2:]), hashlib.sha256)
    return int.from_bytes(drawn[:6], "big") < share * (1 << 48)


def contradicts(first: Outcome, own: Outcome) -> bool:
    """Returns True if this validator should dispute a verdict because of its second look.

    The validator disputes a verdict that missed forgery, a rejection of work that it would accept, and a forgery
    verdict on work that it would accept or only reject. It does not dispute an acceptance of work that it would only
    reject: such rejections depend on measurements near their limits, where honest validators may differ.

    Args:
        first: Outcome of the verdict on the ledger.
        own: Outcome of this validator's second look.
    """
    match own:
        case Outcome.FORGED:
            return first is not Outcome.FORGED
        case Outcome.ACCEPTED:
            return first is not Outcome.ACCEPTED
        case Outcome.REJECTED:
            return first is Outcome.FORGED


def may_decide(me: Address, work: WorkRecord) -> bool:
    """Returns True if the validator `me` is no party to the dispute and has not judged the work (decision 55)."""
    return me not in {work.judge, work.looker, work.disputer, work.juror, work.node, work.provider}
