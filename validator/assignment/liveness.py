"""Liveness of a pool's validators, so that no validator waits for a dead one. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from protocol.identifiers import Address, Digest
from validator.assignment.turns import rank_of


def awake_of(
    validators: Collection[Address], heard: Mapping[Address, datetime], *, now: datetime, within: timedelta
) -> frozenset[Address]:
    """Returns the validators with a recent verdict or commitment on the ledger.

    Args:
        validators: Validators on the ledger now.
        heard: Time of each validator's last activity on the ledger.
        now: The chain's time.
        within: Maximum age of the last activity.
    """
    return frozenset(each for each in validators if each in heard and now - heard[each] <= within)


def rank_here(key: Digest, *, here: Collection[Address], awake: Collection[Address]) -> int:
    """Returns the number of other validators that rank before the first of those that share this Redis.

    Args:
        key: The work key.
        here: Validators that share this Redis.
        awake: Other live validators that may judge it.
    """
    elsewhere = frozenset(awake) - frozenset(here)
    return min((rank_of(key, each, elsewhere) for each in here), default=len(elsewhere))
