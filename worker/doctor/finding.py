"""Findings of the checks of `muster worker doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """The worker can run, but with a limitation."""
    FAILURE = "failure"
    """The worker can't join the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One line of the report.

    Args:
        check: Name of the check.
        level: Severity.
        found: Result of the check.
        advice: Action to take; empty if none is needed.
    """

    check: str
    level: Level
    found: str
    advice: str = ""


def ok(check: str, found: str) -> DoctorFinding:
    """Returns a finding without a problem."""
    return DoctorFinding(check=check, level=Level.OK, found=found)


def warning(check: str, found: str, advice: str) -> DoctorFinding:
    """Returns a finding with a limitation that does not prevent joining."""
    return DoctorFinding(check=check, level=Level.WARNING, found=found, advice=advice)


def failure(check: str, found: str, advice: str) -> DoctorFinding:
    """Returns a finding that prevents joining."""
    return DoctorFinding(check=check, level=Level.FAILURE, found=found, advice=advice)


def exit_code(findings: Iterable[DoctorFinding]) -> int:
    """Returns the exit code of the command: 0 if all is well, 1 with warnings, 2 with failures."""
    levels = {finding.level for finding in findings}
    if Level.FAILURE in levels:
        return 2
    return 1 if Level.WARNING in levels else 0
