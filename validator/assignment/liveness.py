"""Liveness of a pool's validators, so that no validator waits for a dead one. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from protocol.identifiers import Address, Digest
from validator.assignment.turns import rank_of


def awake_of(
    validators: Collection[Address], heard: Mapping[Address, datetime], *, now: datetime, within: timedelta
) -> frozenset[Address]:
    """Those that judged or committed to a secret lately.

    Args:
        validators: As the ledger has them now.
        heard: When each was last heard of there.
        now: The time, on the chain's clock.
        within: How long a sign of life counts.
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
