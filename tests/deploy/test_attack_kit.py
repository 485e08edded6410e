"""The attack kit is a separate wheel: the devnet runs without it and names it when an attacker is requested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with the packages installed into a folder, outside the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def bare(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the network's wheel alone; Python compiles its modules once for all tests."""
    site = tmp_path_factory.mktemp("bare")
    ZipFile(wheels[0]).extractall(site)
    return site


def test_each_file_is_in_exactly_one_wheel(
    wheels: tuple[Path, Path],
) -> None:
    network, attacks = (set(ZipFile(wheel).namelist()) for wheel in wheels)
    assert not [name for name in network if name.startswith("cli/devnet/attacks")]
    assert "cli/devnet/attacks/registry.py" in attacks
    assert not [name for name in attacks if "/attacks/" not in name and ".dist-info/" not in name]
    assert {f"cli/devnet/report/templates/{name}" for name in ("page.html", "charts.html", "style.css")} <= network


@pytest.mark.parametrize("cheat", ["previous-checkpoint", "int8"])
def test_without_the_attack_kit_a_devnet_explains_how_to_install_or_skip_it(
    bare: Path, tmp_path: Path, cheat: str
) -> None:
    net = tmp_path / "net"
    done = python(bare, "-m", "cli", "devnet", "--plain", "--directory", str(net), "--cheat", cheat)
    assert done.returncode == 1
    assert "this needs the attack kit, which is not installed" in done.stderr
    assert "-m pip install 'muster-network[attacks]', or run no cheater: --cheat none" in done.stderr
    assert not net.exists()


def test_without_the_attack_kit_the_devnets_modules_can_be_imported(bare: Path) -> None:
    imported = python(bare, "-c", "import cli.devnet.command, cli.devnet.runner, cli.devnet.report.page")
    assert imported.returncode == 0, imported.stderr


def test_with_the_attack_kits_wheel_the_cheater_starts(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    for wheel in wheels:
        ZipFile(wheel).extractall(tmp_path / "site")
    script = "from cli.devnet import attacks, command; command._require_attacks(); print(attacks.__file__)"
    found = python(tmp_path / "site", "-c", script)
    assert found.stdout.strip() == str(tmp_path / "site" / "cli" / "devnet" / "attacks" / "__init__.py"), found.stderr
    listed = python(tmp_path / "site", "-m", "cli.devnet.attacks", "list")
    assert "previous-checkpoint" in listed.stdout, listed.stderr
