"""What a check found: one line each, with what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """The worker runs, but something is worse than it could be."""
    FAILURE = "failure"
    """The worker can't join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One line of the report.

    Args:
        check: What was looked at.
        level: How bad it is.
        found: What was found.
        advice: What to do; empty when nothing is to be done.
    """

    check: str
    level: Level
    found: str
    advice: str = ""


def ok(check: str, found: str) -> DoctorFinding:
    """All is well."""
    return DoctorFinding(check=check, level=Level.OK, found=found)


def warning(check: str, found: str, advice: str) -> DoctorFinding:
    """It could be better."""
    return DoctorFinding(check=check, level=Level.WARNING, found=found, advice=advice)


def failure(check: str, found: str, advice: str) -> DoctorFinding:
    """The worker can't join like this."""
    return DoctorFinding(check=check, level=Level.FAILURE, found=found, advice=advice)


def exit_code(findings: Iterable[DoctorFinding]) -> int:
    """0 if all is well, 1 with warnings, 2 with failures."""
    levels = {finding.level for finding in findings}
    if Level.FAILURE in levels:
        return 2
    return 1 if Level.WARNING in levels else 0
