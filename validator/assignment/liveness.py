"""Liveness of a pool's validators, determined by the age of their last activity on the ledger. No I/O.

A validator leaves work only to live validators, so that it does not wait for a validator that has stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from protocol.identifiers import Address, Digest
from validator.assignment.turns import rank_of


def awake_of(
    validators: Collection[Address], heard: Mapping[Address, datetime], *, now: datetime, within: timedelta
) -> frozenset[Address]:
    """Returns the validators with a recent verdict or audit commitment on the ledger.

    Args:
        validators: Validators that the pool lists on the ledger now.
        heard: Chain time of each validator's last activity on the ledger.
        now: The chain's present time.
        within: Maximum age of the last activity.
    """
    return frozenset(each for each in validators if each in heard and now - heard[each] <= within)


def rank_here(key: Digest, *, here: Collection[Address], awake: Collection[Address]) -> int:
    """Returns the best rank of the validators on this Redis for a work key, counted from 0.

    The rank is the number of live validators on other Redis servers that come before the best-ranked one on this Redis.

    Args:
        key: The work key, which determines the order.
        here: Validators that use this Redis.
        awake: Live validators that may judge the work; those that are also in `here` are not counted.
    """
    elsewhere = frozenset(awake) - frozenset(here)
    return min((rank_of(key, each, elsewhere) for each in here), default=len(elsewhere))
