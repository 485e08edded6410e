"""Installs the integrations and runs code with them in the environment `.tools/verifiers`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.verifiers_client import PYTHON, ROOT

FIXTURES = ROOT / "tests" / "integrations" / "fixtures"


def install(name: str, target: Path) -> dict[str, str]:
    """Builds an integration's wheel and installs it into `target`; returns the variables of a process that uses it."""
    if not PYTHON.exists():
        pytest.skip(f"there is no verifiers in {PYTHON.parents[1]}: run deploy/setup/verifiers.sh")
    build = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    source = ROOT / "integrations" / name
    done = subprocess.run(
        [*build, "--target", str(target), str(source)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (target, FIXTURES / name, ROOT))),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTEST_ADDOPTS": "",
    }


def run_cases(name: str, home: Path) -> None:
    """Runs `tests/integrations/NAME_cases.py` with the integration installed."""
    variables = install(name, home / "site")
    cases = f"tests/integrations/{name}_cases.py"
    command = [
        str(PYTHON),
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(home / "cases"),
        cases,
    ]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=1700)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
