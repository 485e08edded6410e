"""What corrupt validators can do: the formula against every order that there is."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import pytest

from protocol.errors import InvalidInput
from protocol.verdicts import Outcome
from validator.audit.collusion import CONFIRMED_FROM, Collusion, collusion

HONEST, CORRUPT = "honest", "corrupt"


def played(validators: int, corrupt: int, *, forged: bool) -> Fraction:
    """Plays the contract's rules with every order of the validators that may decide."""
    everybody = [CORRUPT] * corrupt + [HONEST] * (validators - corrupt)
    first = Outcome.ACCEPTED if forged else Outcome.FORGED
    truth = Outcome.FORGED if forged else Outcome.ACCEPTED
    everybody.remove(CORRUPT)  # the judge
    if forged:
        if HONEST not in everybody:
            return Fraction(1)  # nobody disputes
        everybody.remove(HONEST)  # the disputing validator
    won = [outcome_of(order, first, truth, validators) is first for order in permutations(everybody)]
    return Fraction(sum(won), len(won))


def outcome_of(order: tuple[str, ...], first: Outcome, truth: Outcome, validators: int) -> Outcome:
    said = [first if each is CORRUPT else truth for each in order]
    if not said:
        return Outcome.REJECTED if first is Outcome.FORGED else first  # undecided: no penalty
    if validators < CONFIRMED_FROM or said[0] is first:
        return said[0]
    return sorted([first, said[0], said[1]])[1]


@pytest.mark.parametrize("validators", range(1, 8))
def test_the_formula_is_what_every_order_comes_to(validators: int) -> None:
    for corrupt in range(1, validators + 1):
        expected = Collusion(
            launder=played(validators, corrupt, forged=True), slash=played(validators, corrupt, forged=False)
        )
        assert collusion(validators=validators, corrupt=corrupt) == expected


@pytest.mark.parametrize(
    ("validators", "corrupt", "launder", "slash"),
    [  # the table of docs/audits.md
        (1, 1, "1", "0"),
        (2, 1, "1", "0"),
        (3, 1, "0", "0"),
        (3, 2, "1", "1/2"),
        (4, 1, "0", "0"),
        (4, 2, "1", "2/3"),
        (5, 1, "0", "0"),
        (5, 2, "2/3", "1/2"),
        (7, 1, "0", "0"),
        (7, 2, "2/5", "1/3"),
    ],
)
def test_the_table_of_the_docs(validators: int, corrupt: int, launder: str, slash: str) -> None:
    found = collusion(validators=validators, corrupt=corrupt)
    assert (found.launder, found.slash) == (Fraction(launder), Fraction(slash))


def test_nobody_corrupt_does_nothing_and_impossible_numbers_are_refused() -> None:
    assert collusion(validators=3, corrupt=0) == Collusion(launder=Fraction(0), slash=Fraction(0))
    for validators, corrupt in ((0, 0), (3, 4), (3, -1)):
        with pytest.raises(InvalidInput):
            collusion(validators=validators, corrupt=corrupt)
