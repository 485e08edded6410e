"""The shipped systemd units: systemd and the command line accept them, and they expose little."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.configuration.settings import PLACES
from cli.lazy import mount
from cli.main import PARTS, app

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
OPEN_TO_THE_INTERNET = {"muster-discovery", "muster-gateway", "muster-orchestrator", "muster-origin", "muster-relay"}
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")


def command(unit: Path) -> list[str]:
    """Returns the arguments that the unit passes to `muster`, without the operator's own options."""
    (line,) = re.findall(r"^ExecStart=/opt/muster/bin/muster (.*)$", unit.read_text(), re.MULTILINE)
    return [word for word in line.split() if not word.startswith("$")]


def values(unit: Path, name: str) -> list[str]:
    """Returns the words of every line of a unit that sets a directive."""
    return [word for line in re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE) for word in line.split()]


def writable(unit: Path) -> list[Path]:
    """Returns the folders that a unit can write to."""
    return [Path("/var/lib", place) for place in values(unit, "StateDirectory")] + [
        Path(place) for place in values(unit, "ReadWritePaths")
    ]


def keys(unit: Path) -> set[str]:
    """Returns root's files that a unit can read."""
    return {credential.partition(":")[2] for credential in values(unit, "LoadCredential")}


@pytest.fixture
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Returns the unit as after an installation: its program exists."""
    unit: Path = request.param
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/muster/bin/muster", sys.executable))
    return copy


@analyze
@pytest.mark.parametrize("installed", UNITS, ids=lambda unit: unit.stem, indirect=True)
def test_systemd_accepts_every_line_of_each_unit(installed: Path) -> None:
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
def test_units_open_to_the_internet_are_within_the_exposure_limit(installed: Path) -> None:
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
def test_the_command_line_of_each_unit_is_valid(unit: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").touch()
    told = [re.sub(r"^/etc/muster/\w+\.toml$", str(tmp_path / "settings.toml"), word) for word in command(unit)]
    mount(app, PARTS, told)
    done = CliRunner().invoke(app, [*told, "--help"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_variables_are_settings_and_contain_no_secret(unit: Path) -> None:
    known = set()
    for place in PLACES.values():
        module, _, name = place.partition(":")
        known |= {row.variable for row in getattr(import_module(module), name).describe()}
    given = re.findall(r"^Environment=(MUSTER_\w+)=", unit.read_text(), re.MULTILINE)
    assert set(given) <= known
    assert not any(name.endswith(("_PASSWORD", "_KEY")) for name in given)


def test_every_unit_has_its_own_user() -> None:
    users = [user for unit in UNITS for user in values(unit, "User")]
    made = re.findall(r"^u (\S+)", (ROOT / "deploy/systemd/sysusers.conf").read_text(), re.MULTILINE)
    assert sorted(users) == sorted(made) == [unit.stem for unit in UNITS]


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.combinations(UNITS, 2)), ids=lambda unit: unit.stem.removeprefix("muster-")
)
def test_no_two_units_write_to_one_folder_or_hold_one_key(one: Path, other: Path) -> None:
    for folder, another in itertools.product(writable(one), writable(other)):
        assert not folder.is_relative_to(another)
        assert not another.is_relative_to(folder)
    # The origin signs what it serves and the trainer what it announces, both as the publisher.
    publishes = {one.stem, other.stem} == {"muster-origin", "muster-trainer"}
    assert bool(keys(one) & keys(other)) == publishes


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_see_no_process_of_other_users_and_cannot_read_their_memory(unit: Path) -> None:
    assert values(unit, "ProtectProc") == ["invisible"]
    assert values(unit, "ProcSubset") == (["pid"] if unit.stem in OPEN_TO_THE_INTERNET else [])
    refused = " ".join(values(unit, "SystemCallFilter")).partition("~")[2].split()
    assert {"process_vm_readv", "process_vm_writev"} <= set(refused)
    assert {"ptrace", "@debug"} & set(refused)
    assert values(unit, "LimitNOFILE") == ["65536"]


@pytest.fixture
def machine() -> Iterator[Path]:
    """Makes a root folder with the users and shared folders of an installation; every user can enter it."""
    root = Path(tempfile.mkdtemp(prefix="muster-"))
    try:
        root.chmod(0o755)
        (root / "etc").mkdir()
        for tool, file in (("systemd-sysusers", "sysusers.conf"), ("systemd-tmpfiles", "tmpfiles.conf")):
            create = ["--create"] if tool == "systemd-tmpfiles" else []
            subprocess.run(
                [tool, f"--root={root}", *create, str(ROOT / "deploy/systemd" / file)],
                check=True,
                capture_output=True,
                timeout=60,
            )
        yield root
    finally:
        shutil.rmtree(root)


def as_unit(root: Path, unit: str) -> Callable[[str], int]:
    """Runs a shell command in the shared folder with the user, groups and umask of a unit."""
    (path,) = (each for each in UNITS if each.stem == unit)
    users = {line.split(":")[0]: int(line.split(":")[2]) for line in (root / "etc/passwd").read_text().splitlines()}
    groups = {line.split(":")[0]: int(line.split(":")[2]) for line in (root / "etc/group").read_text().splitlines()}

    def run(command: str) -> int:
        return subprocess.run(
            ["sh", "-c", command],
            cwd=root / "var/lib/muster",
            user=users[unit],
            group=groups[unit],
            extra_groups=[groups[name] for name in values(path, "SupplementaryGroups") if name in groups],
            umask=int(values(path, "UMask")[0], 8),
            capture_output=True,
            timeout=60,
            check=False,
        ).returncode

    return run


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for several users")
@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="there is no systemd-tmpfiles here")
def test_only_the_origin_reads_the_trainers_versions(machine: Path) -> None:
    write = "mkdir -p policies/.7.part/sub && echo x > policies/.7.part/sub/a && mv policies/.7.part policies/7"
    assert as_unit(machine, "muster-trainer")(write) == 0
    origin = as_unit(machine, "muster-origin")
    assert origin("ls policies/7/sub && cat policies/7/sub/a") == 0
    assert origin("echo y > policies/7/sub/a") != 0
    assert origin("mkdir policies/8") != 0
    for unit in UNITS:
        if unit.stem not in {"muster-origin", "muster-trainer"}:
            assert as_unit(machine, unit.stem)("ls policies") != 0
            assert as_unit(machine, unit.stem)("mkdir mine") != 0
