"""What a check says: values that a person can read, a program can weigh, and JSON can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from protocol.verdicts import ReasonCode

if TYPE_CHECKING:
    from rollouts.checks.check_input import CheckInput

MOST_FINDINGS = 16
"""Named by one check; the rest is counted. A file that is wrong throughout is no reason for a report of its size."""

Figure = float | int | bool | str | None


class Cost(IntEnum):
    """What a check costs; cheaper ones come first."""

    FILE = 1
    """The file alone."""
    PLAN = 2
    """The slot's prompts, drawn and encoded again."""
    SCORE = 3
    """The environment's own work for every row."""
    PREFILL = 4
    """The policy's own work for every row that is looked at."""


class Fails(StrEnum):
    """What a failure means."""

    EXACT = "exact"
    """No honest node ever makes such a file."""
    STATISTICAL = "statistical"
    """Beyond what honest work was seen to show."""


class CheckOutcome(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It could not be judged; the note says what is missing. Never guilt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """One thing that is wrong.

    Args:
        reason: The code for the ledger.
        what: In words, with the value and what it had to be.
        row: The row of the file, from 0, if it is about one.
        sample: That row's sample number.
        group: That row's group.
        position: The output token in question, from 0, if it is about one.
        single: Whether one log-probability or one proof is all that it rests on. Where attention is sharp, rounding
            alone moves single ones far, so nobody is slashed for them.
    """

    reason: ReasonCode
    what: str
    row: int | None = None
    sample: int | None = None
    group: int | None = None
    position: int | None = None
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check says about one file.

    Args:
        check: Its name.
        state: What became of it.
        fails: What the failure means; None if it did not fail.
        findings: What is wrong, at most `MOST_FINDINGS` of it.
        found: How much is wrong.
        figures: What was measured or counted over the file.
        rows: The same for single rows, by their place in the file.
        note: What limits the judgement.
        broad: Whether a finding is not `single`, among those that are not listed, too.
    """

    check: str
    state: CheckOutcome
    fails: Fails | None = None
    findings: tuple[CheckFinding, ...] = ()
    found: int = 0
    figures: Mapping[str, Figure] = field(default_factory=dict)
    rows: Mapping[int, Mapping[str, Figure]] = field(default_factory=dict)
    note: str = ""
    broad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a pure function with what a reader of verdicts must know about it.

    Args:
        number: Its place, and the hundreds of its reason codes.
        name: One word.
        cost: Its cost class.
        fails: What its failures mean, as a rule.
        rationale: Why failing it means that.
        judge: What it does.
    """

    number: int
    name: str
    cost: Cost
    fails: Fails
    rationale: str
    judge: Callable[[CheckInput], CheckResult]


def concluded(
    name: str,
    findings: Sequence[CheckFinding],
    *,
    fails: Fails,
    figures: Mapping[str, Figure] | None = None,
    rows: Mapping[int, Mapping[str, Figure]] | None = None,
    note: str = "",
) -> CheckResult:
    """A check that could be judged: failed if anything was found."""
    return CheckResult(
        check=name,
        state=CheckOutcome.FAILED if findings else CheckOutcome.PASSED,
        fails=fails if findings else None,
        findings=tuple(findings[:MOST_FINDINGS]),
        found=len(findings),
        figures=figures or {},
        rows=rows or {},
        note=note,
        broad=any(not one.single for one in findings),
    )


def unknown(name: str, note: str, *, figures: Mapping[str, Figure] | None = None) -> CheckResult:
    """A check that could not be judged, and why."""
    return CheckResult(check=name, state=CheckOutcome.UNKNOWN, figures=figures or {}, note=note)
