"""A check of rollout files: its description and the function that performs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckResult, Cost, Fails


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check: a pure function and its description for readers of verdicts.

    Args:
        number: The check's number; its reason codes begin at 100 times the number.
        name: The name, one word.
        cost: The cost class.
        fails: Usual strength of its failures.
        rationale: Why a failure has that strength.
        judge: The function that performs the check.
    """

    number: int
    name: str
    cost: Cost
    fails: Fails
    rationale: str
    judge: Callable[[CheckInput], CheckResult]
