"""Findings of the checks of `muster worker doctor`, `muster validator doctor` and `muster admin check`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, but with a limitation."""
    FAILURE = "failure"
    """The worker can't join the pool, the validator can't judge, or a backup would lack something."""


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
    """Returns a finding with a limitation."""
    return DoctorFinding(check=check, level=Level.WARNING, found=found, advice=advice)


def failure(check: str, found: str, advice: str) -> DoctorFinding:
    """Returns a finding with which the service can't do its work."""
    return DoctorFinding(check=check, level=Level.FAILURE, found=found, advice=advice)


def exit_code(findings: Iterable[DoctorFinding]) -> int:
    """Returns the exit code of the command: 0 without failures, also with warnings, and 1 otherwise."""
    return int(any(finding.level is Level.FAILURE for finding in findings))
