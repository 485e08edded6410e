"""What some corrupt validators of a pool can do together, as exact probabilities. Pure.

The worst case for the pool: a corrupt validator always gives the first verdict, since the ledger takes the first that
comes. The honest ones are at work. A dispute's validators are ordered by a hash that nobody can choose, so each order
is equally likely (`WorkLedger`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from protocol.errors import InvalidInput

CONFIRMED_FROM = 4
"""The number of validators from which on one alone can't overturn a verdict (`WorkLedger.CONFIRMED_FROM`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collusion:
    """What corrupt validators of a pool can do to one file.

    Args:
        launder: The probability that a forged file is paid and learned although an honest validator looks at it and
            disputes. Without a second look it is 1.
        slash: The probability that an honest file costs its penalty although the node disputes.
    """

    launder: Fraction
    slash: Fraction


def collusion(*, validators: int, corrupt: int) -> Collusion:
    """Returns what `corrupt` of a pool's validators can do.

    Args:
        validators: How many the pool has, at least 1.
        corrupt: How many of them work together against it, 0 to all.

    Raises:
        InvalidInput: There are no validators, or more corrupt ones than that.
    """
    if validators < 1 or not 0 <= corrupt <= validators:
        raise InvalidInput(f"{corrupt} of {validators} validators", hint="at least one validator; at most all corrupt")
    if corrupt == 0:
        return Collusion(launder=Fraction(0), slash=Fraction(0))
    if corrupt == validators:
        launder = Fraction(1)  # no honest validator disputes
    else:  # the judge and the honest validator that disputes are out of it
        launder = _upheld(validators - 2, corrupt - 1, validators=validators, undecided=Fraction(1))
    # The node disputes, so only the judge is out of it. Where nobody decides, there is no penalty.
    slash = _upheld(validators - 1, corrupt - 1, validators=validators, undecided=Fraction(0))
    return Collusion(launder=launder, slash=slash)


def _upheld(eligible: int, corrupt: int, *, validators: int, undecided: Fraction) -> Fraction:
    """The probability that a corrupt first verdict stands after a dispute.

    Args:
        eligible: Validators that may decide.
        corrupt: How many of them uphold the verdict.
        validators: All of the pool.
        undecided: The probability that the verdict has its effect where nobody decides.
    """
    if eligible == 0:
        return undecided
    first = Fraction(corrupt, eligible)
    if validators < CONFIRMED_FROM:
        return first
    # An honest one that comes first only contradicts; then the next in order decides by the median of the three.
    return first + (1 - first) * Fraction(corrupt, eligible - 1)
