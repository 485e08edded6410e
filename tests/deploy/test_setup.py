"""The set-up scripts on machines that are not as they should be: one clear line, and nobody's files are touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def set_up(venv: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "deploy/setup/python.sh")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "MUSTER_VENV": str(venv), "MUSTER_NO_INSTALL": "1", **environment},
    )


def test_a_folder_with_somebodys_files_is_neither_used_nor_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    done = set_up(tmp_path, PYTHON=str(broken_python(tmp_path.parent)))
    assert done.returncode == 1
    assert "no virtual environment" in done.stderr
    assert precious.read_text() == "mine"


def test_a_place_that_can_not_be_written_is_said_in_one_line() -> None:
    done = set_up(Path("/proc/muster-venv"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "can't write /proc/muster-venv" in done.stderr


def test_a_python_that_makes_no_environments_is_said_with_what_to_install(tmp_path: Path) -> None:
    done = set_up(tmp_path / "venv", PYTHON=str(broken_python(tmp_path)))
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def broken_python(folder: Path) -> Path:
    """A Python of a good version, without the modules that Debian packages apart."""
    path = folder / "broken-python"
    path.write_text('#!/bin/sh\ncase "$*" in *"-m "*) echo "No module named venv" >&2; exit 1 ;; esac\n')
    path.chmod(0o755)
    return path
