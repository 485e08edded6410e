"""Order of validators for each piece of work, on which they agree without communication.

Rendezvous hashing: every validator has a rank for every key. Rank 0 starts immediately, each further rank after a
further delay. So the next validator takes over the work of a dead one without having to detect that it is dead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import timedelta

from protocol.identifiers import Address, Digest


def rank_of(key: Digest, me: Address, others: Iterable[Address]) -> int:
    """Returns the rank of `me` for a work key; 0 is first.

    Args:
        key: The work key.
        me: This validator.
        others: Other eligible validators; may include `me`.
    """
    mine = _weight(key, me)
    return sum(_weight(key, other) < mine for other in set(others) if other != me)


def delay_of(rank: int, *, takeover: timedelta, left: timedelta) -> timedelta:
    """Returns the delay of a rank: `takeover` for each rank before it, at most half of the time left.

    Args:
        rank: From 0.
        takeover: Silence after which a validator is considered dead.
        left: Time until the verdict would be too late.
    """
    return max(timedelta(), min(rank * takeover, left / 2))


def _weight(key: Digest, who: Address) -> bytes:
    return hashlib.sha256(bytes.fromhex(key[2:]) + bytes.fromhex(who[2:])).digest()
