"""From what checks say to a verdict. Pure: results in, outcome, reason and words out (decision 27).

An exact failure is forgery. A statistical one is forgery only if two prefills of different batch shapes both put the
file beyond the limits and beyond the margin around them; else it is not paid, and costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.verdicts import Outcome, ReasonCode
from rollouts.checks import CheckResult, Fails, Finding, State

FEW_ROWS = 0.02
"""Of the rows of an environment that runs programs: so many may be scored otherwise without being called forged, since
a program that looks at the clock is scored by chance."""

PROGRAMS = frozenset({"code"})
"""Environments whose scores come from running what the model wrote."""

UNCONFIRMED = {
    "computation": ReasonCode.COMPUTATION_UNCONFIRMED,
    "sampling": ReasonCode.SAMPLING_UNCONFIRMED,
    "logprobs": ReasonCode.LOG_PROBABILITIES_UNCONFIRMED,
}

_COPY = "; all of its outputs are those of another submission (IDENTITY_COPY)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is said, why, and in which words."""

    outcome: Outcome
    reason: ReasonCode
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """What one prefill of all rows, or of those that were drawn, amounts to.

    Args:
        results: Of checks 8 to 10, by the limits.
        beyond: The names of those that fail by limits widened by the margin, too.
    """

    results: tuple[CheckResult, ...]
    beyond: frozenset[str]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that say no."""
        return tuple(one for one in self.results if one.state is State.FAILED)

    @property
    def malformed(self) -> CheckResult | None:
        """A check that found what no honest prover makes."""
        return next((one for one in self.failed if one.fails is Fails.EXACT), None)


def forged(result: CheckResult, *, copy: bool = False) -> Verdict:
    """An exact check failed."""
    return Verdict(
        outcome=Outcome.FORGED,
        reason=result.findings[0].reason,
        words=f"{result.check}: {_first(result)}{_COPY if copy else ''}",
    )


def other_joining(result: CheckResult) -> Verdict:
    """The seed of another of the node's joinings draws the file than that of the one which the orchestrator names."""
    words = (
        f"{result.check}: {_first(result)}; the seed of another joining of this node does, and only the orchestrator's "
        "word says which one counts, so it is not paid, and costs nothing more"
    )
    return Verdict(outcome=Outcome.REJECTED, reason=result.findings[0].reason, words=words)


def rewards_differ(result: CheckResult, *, rows: int, environment: str, copy: bool = False) -> Verdict:
    """Scored again and again, rows have other rewards."""
    verdict = forged(result, copy=copy)
    if environment in PROGRAMS and result.found <= max(1, FEW_ROWS * rows):
        words = f"{verdict.words}; so few rows may have been scored by chance, so it is not called forged"
        return Verdict(outcome=Outcome.REJECTED, reason=verdict.reason, words=words)
    return verdict


def accepted(*, rows: int, audited: int, copy: bool) -> Verdict:
    """Every check passed."""
    words = f"all checks passed; {audited} of {rows} rows were computed again"
    if copy:
        words += "; its outputs are those of another submission, and were drawn from its own seed all the same"
    return Verdict(outcome=Outcome.ACCEPTED, reason=ReasonCode.PASSED, words=words)


def statistical(first: Prefilled, second: Prefilled, *, copy: bool) -> Verdict:
    """A check failed in the first prefill; the second has another batch shape.

    Args:
        first: Has failed somewhere.
        second: Of the same rows.
        copy: Whether another submission has the same outputs.
    """
    tail = _COPY if copy else ""
    for result in first.failed:
        if result.check in first.beyond & second.beyond:
            return Verdict(
                outcome=Outcome.FORGED,
                reason=result.findings[0].reason,
                words=f"{result.check}: {_first(result)}; another prefill says the same{tail}",
            )
    result = first.failed[0]
    agrees = any(one.check == result.check for one in second.failed)
    why = "but not so far that it must be forgery" if agrees else "but another prefill does not say so"
    words = f"{result.check}: {_first(result)}; {why}, so it is not paid, and costs nothing more{tail}"
    return Verdict(outcome=Outcome.REJECTED, reason=UNCONFIRMED[result.check], words=words)


def _first(result: CheckResult) -> str:
    more = f" (and {result.found - 1} more)" if result.found > 1 else ""
    return f"{_place(result.findings)}{result.findings[0].what}{more}"


def _place(findings: Sequence[Finding]) -> str:
    one = findings[0]
    parts = [f"row {one.row}" if one.row is not None else "", f"token {one.position}" if one.position else ""]
    place = ", ".join(part for part in parts if part)
    return f"{place}: " if place else ""
