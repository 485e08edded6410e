"""Whose turn it is: validators that share nothing but the ledger agree on an order for each piece of work.

Rendezvous hashing: every validator has a rank for every key. Rank 0 begins at once, each further one after a while
more, so that the work of a dead one is taken up by the next, and nobody has to know who is dead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import timedelta

from protocol.identifiers import Address, Digest


def rank_of(key: Digest, me: Address, others: Iterable[Address]) -> int:
    """How many of `others` come before `me` for a work key: 0 is the first.

    Args:
        key: The work key.
        me: This validator.
        others: Who else may take it; may name `me` too.
    """
    mine = _weight(key, me)
    return sum(_weight(key, other) < mine for other in set(others) if other != me)


def delay_of(rank: int, *, takeover: timedelta, left: timedelta) -> timedelta:
    """How long a rank waits: `takeover` for each before it, but never beyond half of the time that is left.

    Args:
        rank: From 0.
        takeover: How long another validator may be silent before it is taken for dead.
        left: Until the verdict would come too late.
    """
    return max(timedelta(), min(rank * takeover, left / 2))


def _weight(key: Digest, who: Address) -> bytes:
    return hashlib.sha256(bytes.fromhex(key[2:]) + bytes.fromhex(who[2:])).digest()
