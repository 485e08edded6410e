"""Set-up scripts: clear errors on broken machines, and only packages and images with locked hashes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "deploy/images").rglob("Dockerfile"))
LOCKS = [ROOT / "requirements.lock", *sorted((ROOT / "deploy/locks").glob("*.lock"))]


def set_up(venv: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "deploy/setup/python.sh")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "MUSTER_VENV": str(venv), "MUSTER_NO_INSTALL": "1", **environment},
    )


def test_an_existing_folder_with_other_files_is_neither_used_nor_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    done = set_up(tmp_path, PYTHON=str(broken_python(tmp_path.parent)))
    assert done.returncode == 1
    assert "no virtual environment" in done.stderr
    assert precious.read_text() == "mine"


def test_an_unwritable_target_is_reported_in_one_line() -> None:
    done = set_up(Path("/proc/muster-venv"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "can't write /proc/muster-venv" in done.stderr


def test_a_python_without_venv_is_reported_with_the_package_to_install(tmp_path: Path) -> None:
    done = set_up(tmp_path / "venv", PYTHON=str(broken_python(tmp_path)))
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def torch_of(lock: str) -> str:
    found = re.search(r"^torch==(\S+)", (ROOT / "deploy/locks" / lock).read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("script", [*sorted((ROOT / "deploy").rglob("*.sh")), *DOCKERFILES], ids=lambda path: path.name)
def test_pip_installs_only_wheels_with_matching_hashes(script: Path) -> None:
    commands = re.findall(r"pip(?: --python \S+)? install.*", script.read_text().replace("\\\n", " "))
    for command in commands:
        own_code = "--no-deps --no-build-isolation --editable ." in command
        assert own_code or ("--require-hashes" in command and "--only-binary=:all:" in command), command


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_line_of_a_lock_is_one_version_with_hashes(lock: Path) -> None:
    entries = lock.read_text().replace("\\\n", " ").splitlines()
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+( ; [^\\]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", entry), entry[:120]


def test_all_locks_pin_the_torch_version_of_pyproject() -> None:
    (torch,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["dependency-metadata"]
    assert {torch_of("torch-cuda.lock"), torch_of("vllm.lock")} == {torch["version"]}
    assert torch_of("torch-cpu.lock") == torch["version"] + "+cpu"


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.parent.name)
def test_each_image_names_its_base_by_digest(file: Path) -> None:
    bases = re.findall(r"^(?:ARG BASE=|FROM )(\S+)", file.read_text(), re.MULTILINE)
    assert [base for base in bases if base != "${BASE}"]
    assert all(base == "${BASE}" or re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases), bases


def test_a_package_with_a_wrong_hash_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "muster_probe-1-py3-none-any.whl").write_bytes(b"changed on its way")
    (tmp_path / "probe.lock").write_text(f"muster-probe==1 --hash=sha256:{'0' * 64}\n")
    script = (ROOT / "deploy/setup/python.sh").read_text()
    (install,) = re.findall(r"^install_locked\(\) \{ .* \}$", script, re.MULTILINE)
    venv = os.environ.get("MUSTER_VENV", str(ROOT / ".venv"))
    command = f'venv={venv}\n{install}\ninstall_locked --no-index --find-links {tmp_path} --target {tmp_path}/to "$@"'
    done = subprocess.run(
        ["bash", "-c", command, "bash", "-r", str(tmp_path / "probe.lock")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def broken_python(folder: Path) -> Path:
    """Makes a supported Python without the modules that Debian packages separately."""
    path = folder / "broken-python"
    path.write_text('#!/bin/sh\ncase "$*" in *"-m "*) echo "No module named venv" >&2; exit 1 ;; esac\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("required", "code"), [("", 0), ("redis,prometheus", 1)])
def test_prometheus_is_unpacked_without_installing_it_or_its_loss_is_told(
    tmp_path: Path, required: str, code: int
) -> None:
    """The programs `apt-get` and `dpkg` in the test fail, or make a package of two files."""
    programs, setup = tmp_path / "bin", tmp_path / "deploy" / "setup"
    programs.mkdir()
    setup.mkdir(parents=True)
    for name in ("system.sh", "say.sh"):
        shutil.copy(ROOT / "deploy/setup" / name, setup)
    for name in ("bash", "dirname", "id", "mkdir", "mktemp", "mv", "rm", "tail", "touch"):
        (programs / name).symlink_to(shutil.which(name) or "")

    def run() -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(programs), "MUSTER_REQUIRE": required}
        command = [str(setup / "system.sh"), "prometheus"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    done = run()
    assert done.returncode == code, done.stderr
    assert "no prometheus and promtool" in done.stdout or "could not be unpacked" in done.stderr

    refuses_all_but_download = '#!/usr/bin/env bash\n[ "$1" = download ] && touch prometheus_2_amd64.deb\n'
    unpacks = '#!/usr/bin/env bash\nmkdir -p "$3/usr/bin" && touch "$3/usr/bin/prometheus" "$3/usr/bin/promtool"\n'
    for name, script in (("apt-get", refuses_all_but_download), ("dpkg", unpacks)):
        (programs / name).write_text(script.replace("/usr/bin/env bash", str(shutil.which("bash"))))
        (programs / name).chmod(0o755)
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / ".tools/prometheus").iterdir()} == {"prometheus", "promtool"}
