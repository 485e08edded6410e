"""Wheels of this repository, built once per test session and process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Builds the wheel of the network and that of the attack kit."""
    made = []
    for project in (ROOT, ROOT / "deploy" / "attacks"):
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        made.append(wheel)
    network, attacks = made
    assert network.name.split("-")[1] == attacks.name.split("-")[1]
    return network, attacks
