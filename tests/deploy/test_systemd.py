"""The units that operators copy: systemd and our command line take what they say, and they give little away."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import PARTS, app
from cli.parts import mount
from cli.settings import PLACES

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
OPEN_TO_THE_INTERNET = {"muster-discovery", "muster-orchestrator", "muster-origin", "muster-relay"}
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


def command(unit: Path) -> list[str]:
    """What the unit tells `muster`, without the operator's own options."""
    (line,) = re.findall(r"^ExecStart=/opt/muster/bin/muster (.*)$", unit.read_text(), re.MULTILINE)
    return [word for word in line.split() if not word.startswith("$")]


@pytest.fixture
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The unit as it stands after an installation: its program is there."""
    unit: Path = request.param
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/muster/bin/muster", sys.executable))
    return copy


@analyze
@pytest.mark.parametrize("installed", UNITS, ids=lambda unit: unit.stem, indirect=True)
def test_systemd_takes_every_line_of_it(installed: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(installed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    about_it = [line for line in done.stderr.splitlines() if installed.name in line]
    assert (done.returncode, about_it) == (0, []), done.stderr


@analyze
@pytest.mark.parametrize("installed", UNITS, ids=lambda unit: unit.stem, indirect=True)
def test_what_strangers_reach_is_shut_in(installed: Path) -> None:
    most = 20 if installed.stem in OPEN_TO_THE_INTERNET else 60  # tenths of systemd's exposure level, of 10
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", str(installed)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_our_command_line_takes_what_it_starts(unit: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").touch()
    told = [re.sub(r"^/etc/muster/\w+\.toml$", str(tmp_path / "settings.toml"), word) for word in command(unit)]
    mount(app, PARTS, told)
    done = CliRunner().invoke(app, [*told, "--help"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_variables_are_settings_and_none_is_a_secret(unit: Path) -> None:
    known = set()
    for place in PLACES.values():
        module, _, name = place.partition(":")
        known |= {row.variable for row in getattr(import_module(module), name).describe()}
    given = re.findall(r"^Environment=(MUSTER_\w+)=", unit.read_text(), re.MULTILINE)
    assert set(given) <= known
    assert not any(name.endswith(("_PASSWORD", "_KEY")) for name in given)
