"""Turns of a dialogue: which tokens after the prompt the model drew, and which the environment gave.

A dialogue's tokens are prompt ‖ drawn 1 ‖ given 1 ‖ drawn 2 ‖ given 2 ‖ … ‖ drawn n. They only grow: drawn tokens are
never decoded and encoded again. A single answer has no turns; all its tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn of a dialogue.

    Args:
        drawn: Number of tokens that the model drew, at least one.
        given: int32 [G], tokens that follow them, without a draw; empty after the last turn.
    """

    drawn: int
    given: NDArray[np.int32]


def interleave(drawn: NDArray[np.int32], turns: Sequence[Turn]) -> NDArray[np.int32]:
    """Returns all tokens after the prompt, int32: drawn and given ones in their order.

    Args:
        drawn: int32 [T], the drawn tokens of all turns.
        turns: The turns, whose numbers of drawn tokens sum to T; empty for a single answer.
    """
    parts = [part for turn in by_turn(drawn, turns) for part in turn]
    return np.concatenate(parts).astype(np.int32) if parts else drawn


def by_turn(drawn: NDArray[np.int32], turns: Sequence[Turn]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yields the drawn and the given tokens of each turn.

    Args:
        drawn: int32 [T], the drawn tokens of all turns.
        turns: The turns.
    """
    start = 0
    for turn in turns:
        yield drawn[start : start + turn.drawn], turn.given
        start += turn.drawn


def drawn_places(turns: Sequence[Turn], *, drawn: int) -> NDArray[np.int64]:
    """Returns the index of each drawn token among all tokens after the prompt, int64 [drawn]."""
    places = np.arange(drawn, dtype=np.int64)
    end = 0
    for turn in turns:
        end += turn.drawn
        places[end:] += len(turn.given)
    return places


def turns_fault(turns: Sequence[Turn], *, drawn: int) -> str:
    """Returns why turns do not fit a sample's number of drawn tokens; empty if they do, or if there are none."""
    if not turns:
        return ""
    if any(turn.drawn < 1 for turn in turns):
        return "a turn has no drawn token"
    if sum(turn.drawn for turn in turns) != drawn:
        return f"its turns have {sum(turn.drawn for turn in turns)} drawn tokens, but it has {drawn}"
    if not all(len(turn.given) for turn in turns[:-1]):
        return "no token is given between two turns"
    return "tokens are given after the last turn" if len(turns[-1].given) else ""


def given_tokens(turns: Sequence[Turn]) -> int:
    """Returns the number of given tokens."""
    return sum(len(turn.given) for turn in turns)
