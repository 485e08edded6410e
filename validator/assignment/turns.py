"""Order of validators for each piece of work; validators agree on it without communication.

The order comes from rendezvous hashing: every validator has a rank for every work key. The validator of rank 0 starts
immediately, and each further rank starts one delay later. So if a validator has stopped, the next one takes over its
work without having to detect the stop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import timedelta

from protocol.identifiers import Address, Digest


def rank_of(key: Digest, me: Address, others: Iterable[Address]) -> int:
    """Returns the rank of `me` for a work key: the number of other validators that come before `me`.

    Args:
        key: The work key.
        me: Address of the ranked validator.
        others: All eligible validators; including `me` changes nothing.
    """
    mine = _weight(key, me)
    return sum(_weight(key, other) < mine for other in set(others) if other != me)


def delay_of(rank: int, *, takeover: timedelta, left: timedelta) -> timedelta:
    """Returns the delay before the validator of a rank starts: rank times `takeover`, but at most half of `left`.

    Args:
        rank: Rank of the validator, from 0.
        takeover: Time that each validator has before the next one takes over.
        left: Time until the deadline of the verdict.
    """
    return max(timedelta(), min(rank * takeover, left / 2))


def _weight(key: Digest, who: Address) -> bytes:
    return hashlib.sha256(bytes.fromhex(key[2:]) + bytes.fromhex(who[2:])).digest()
