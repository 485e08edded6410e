"""Formats the findings of a doctor for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from cli.output.printing import say
from protocol.runtime.findings import DoctorFinding


def show_findings(findings: Sequence[DoctorFinding]) -> None:
    """Prints findings as text, one per line, with the advice below."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark = {"ok": "ok     ", "warning": "warning", "failure": "FAILURE"}[finding.level]
        say(f"{mark}  {finding.check:<{width}}  {finding.found}")
        if finding.advice:
            say(f"{'':9}{'':<{width}}  → {finding.advice}")
