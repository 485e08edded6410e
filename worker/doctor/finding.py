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
    """Returns the exit code of the command: 0 if the worker can join the pool, 1 if it can't."""
    return int(any(finding.level is Level.FAILURE for finding in findings))
