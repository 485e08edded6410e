"""Goals of a devnet run, measured on prompts held out of training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Quality that the policy must reach by the end of the run.

    Args:
        rise: By how much greedy accuracy has to rise, as a share.
        distance: How many tokens answers may be from the wanted length at most, on average over drawn ones; None where
            no length is wanted.
    """

    rise: float
    distance: float | None = None
