"""Runs `muster` commands in the test's own process, and lists the modules that a command imports."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def reader_variables(home: Path) -> dict[str, str]:
    """Writes the command `muster` into `home/bin`; returns the environment variables of a shell that has it."""
    command = home / "bin" / "muster"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cli "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    return kept | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HOME": str(home),
        "CUDA_VISIBLE_DEVICES": "",
    }


@dataclass(frozen=True)
class Imports:
    """A finished command and the modules that it had imported."""

    found: list[str]
    """Those of the given modules that were imported."""
    collects: bool
    """Whether the garbage collector ran."""
    out: str
    err: str


def imports_of(names: Sequence[str], *arguments: str) -> Imports:
    """Runs a command in a process of its own; returns which of the modules `names` it imports."""
    script = f"""
import gc, sys
from muster_network import main
try:
    main()
finally:
    print("\\nimported", *[name for name in {[*names]!r} if name in sys.modules])
    print(gc.isenabled())
"""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *lines, imported, collects = done.stdout.splitlines()
    return Imports(imported.split()[1:], collects == "True", "\n".join(lines), done.stderr)
