"""Results of checks, readable by people and programs and serialisable as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np

from protocol.verdicts import ReasonCode

MOST_FINDINGS = 16
"""Findings listed per check; further ones are only counted, which bounds the size of reports."""

Figure = float | int | bool | str | None


class Cost(IntEnum):
    """Cost class of a check.

    Cheaper checks run first, except scoring, which runs after the checks of a prefill (decision 58). The tuples in
    `rollouts.checks` determine the order.
    """

    FILE = 1
    """Reads only the file."""
    PLAN = 2
    """Draws and encodes the slot's prompts again."""
    SCORE = 3
    """Scores every row in the environment."""
    PREFILL = 4
    """Runs the policy on every selected row."""


class Fails(StrEnum):
    """Strength of a failure as evidence."""

    EXACT = "exact"
    """No honest node ever produces a file with such a failure."""
    STATISTICAL = "statistical"
    """The file exceeds the calibrated limits of honest work."""


class CheckOutcome(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The check could not be judged; the note says why. The node is not penalised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """One deviation found by a check.

    Args:
        reason: The ledger's reason code.
        what: Description with the found and the expected value.
        row: Row of the file, from 0; None if the finding concerns the whole file.
        sample: That row's sample number.
        group: That row's group.
        position: Output token, from 0; None if the finding concerns no single token.
        single: Whether the finding rests on one log-probability or one proof. With sharp attention, rounding alone
            can move one value far, so a node is never slashed for such a finding.
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
    """One check's result for one file.

    Args:
        check: The check's name.
        state: The outcome.
        fails: Strength of the failure; None if the check did not fail.
        findings: The first `MOST_FINDINGS` findings.
        found: Number of all findings.
        figures: Values measured over the file.
        rows: Values measured for single rows, by row number.
        note: Reason why the check could not be judged, or judged only in part; empty if there is none.
        broad: True if at least one finding, listed or not, is not `single`.
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


def concluded(
    name: str,
    findings: Sequence[CheckFinding],
    *,
    fails: Fails,
    figures: Mapping[str, Figure] | None = None,
    rows: Mapping[int, Mapping[str, Figure]] | None = None,
    note: str = "",
) -> CheckResult:
    """Returns the result of a judged check: failed if there are findings."""
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
    """Returns the result of a check that could not be judged; `note` says why."""
    return CheckResult(check=name, state=CheckOutcome.UNKNOWN, figures=figures or {}, note=note)


def first_difference(found: Iterable[int], expected: Sequence[int]) -> int | None:
    """Returns the first position at which two sequences differ or one ends; None if they are equal."""
    there, wanted = np.asarray(found, np.int64), np.asarray(expected, np.int64)
    both = min(len(there), len(wanted))
    unequal = np.flatnonzero(there[:both] != wanted[:both])
    if len(unequal):
        return int(unequal[0])
    return None if len(there) == len(wanted) else both
