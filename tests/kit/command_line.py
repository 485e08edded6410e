"""Runs `muster` commands in the test's own process."""

from __future__ import annotations

import sys

import pytest

from cli import main as command_line


def run_muster(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs a command and returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["muster", *arguments])
    try:
        command_line.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0
