"""Installing a release: verified wheel, files beside the code, and packages that another one replaces."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import muster_network
from cli.worker.daemon import upgrade_commands
from protocol.errors import InvalidInput
from protocol.runtime.extras import DISTRIBUTION
from protocol.runtime.shipped import SHIPPED
from tests.kit.command_line import run_muster

ROOT = Path(__file__).parents[2]
DIGEST = "5e" * 32
URL = "https://files.example/muster_network-2.0-py3-none-any.whl"


def muster(*arguments: str, path: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `muster` with packages from these folders, outside the checkout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-m", "muster_network", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def site(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder into which pip installed the wheel with the printed command."""
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    folder = tmp_path_factory.mktemp("site")
    done = installed(upgrade_commands(str(wheels[0]), digest)[0], folder)
    assert done.returncode == 0, done.stderr
    return folder


def installed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a printed pip command, with another target and without network."""
    words = [*shlex.split(command, comments=True), "--target", str(folder), "--no-index", "--no-compile"]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def test_the_wheel_has_every_file_that_commands_need(site: Path, tmp_path: Path) -> None:
    listed = muster("files", path=[site], folder=tmp_path)
    assert listed.returncode == 0, listed.stderr
    tracked = subprocess.run(["git", "ls-files", *SHIPPED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(tracked.stdout.split()) <= set(listed.stdout.split())
    units = Path(muster("files", "deploy/systemd", path=[site], folder=tmp_path).stdout.strip())
    assert units.is_relative_to(site)
    assert (units / "muster-worker.service").read_bytes() == (
        ROOT / "deploy/systemd/muster-worker.service"
    ).read_bytes()


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "deploy/setup/python.sh", "deploy/systemd/../../cli", "/etc/passwd"]
)
def test_a_file_that_is_not_shipped_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_muster(monkeypatch, "files", name) == 1
    assert "this release has no file" in capsys.readouterr().err


def test_an_installed_wheel_makes_the_build_context_of_the_rollout_image(site: Path, tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, cli.devnet.image as image; print(image.write_build_context(pathlib.Path(sys.argv[1])))"
    )
    context = tmp_path / "context"
    context.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", script, str(context)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    recipe = (context / done.stdout.strip()).read_text()
    copied = [name for line in re.findall(r"^COPY (.+)$", recipe, re.MULTILINE) for name in line.split()[:-1]]
    assert copied
    assert [name for name in copied if not (context / name).exists()] == []
    assert (context / "rollouts/__main__.py").read_bytes() == (ROOT / "rollouts/__main__.py").read_bytes()
    assert not list(context.rglob("__pycache__"))
    assert not (context / "protocol/shipped").exists()


def test_pip_refuses_a_release_with_another_digest(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    right = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    command = upgrade_commands(str(wheels[0]), right)[0]
    done = installed(command.replace(right, DIGEST), tmp_path / "site")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "site").exists()
    with pytest.raises(InvalidInput, match="has the SHA-256"):
        upgrade_commands(str(wheels[0]), DIGEST)


def test_an_upgrade_names_wheel_digest_and_the_locks_of_the_release() -> None:
    install, locked, check = upgrade_commands(URL, DIGEST.upper())
    assert f"'{DISTRIBUTION} @ {URL}#sha256={DIGEST}'" in install
    assert "--require-hashes" in locked
    assert "muster_network files requirements.lock" in locked
    assert "pip check" in check


@pytest.mark.parametrize(
    ("release", "digest", "words"),
    [
        (URL, None, "the SHA-256 of the release is missing"),
        (URL, DIGEST[:-1], "--sha256 is not 64 hex digits"),
        (URL.replace("https", "http"), DIGEST, "not an https URL"),
        (URL + "#sha256=" + DIGEST, DIGEST, "not an https URL"),
        (URL.replace("muster_network", "muster"), DIGEST, "not a wheel of muster-network"),
        (DISTRIBUTION, DIGEST, "not a wheel of muster-network"),
    ],
)
def test_an_upgrade_refuses_what_it_could_not_verify(release: str, digest: str | None, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        upgrade_commands(release, digest)


@pytest.mark.parametrize(
    ("origin", "commands"),
    [
        ({"url": "file:///opt/my%20clone", "dir_info": {}}, ["git -C '/opt/my clone'", "pip install '/opt/my clone'"]),
        ({"url": "file:///opt/clone", "dir_info": {"editable": True}}, ["git -C /opt/clone", "--editable /opt/clone"]),
        ({"url": URL, "archive_info": {}}, None),
        (None, None),
    ],
)
def test_only_a_clone_is_upgraded_without_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, commands: list[str] | None
) -> None:
    metadata = tmp_path / "muster_network-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    if commands is None:
        with pytest.raises(InvalidInput, match="needs another release"):
            upgrade_commands(None, None)
    else:
        said = upgrade_commands(None, None)
        assert all(part in line for part, line in zip(commands, said, strict=False))


@pytest.mark.parametrize("shadow", ["protocol/__init__.py", "cli/__init__.py", "worker.py"])
def test_a_package_that_hides_ours_is_named_before_it_runs(tmp_path: Path, shadow: str) -> None:
    file = tmp_path / shadow
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('a stranger ran')")
    done = muster("version", path=[tmp_path, ROOT], folder=tmp_path)
    name = shadow.partition("/")[0].removesuffix(".py")
    place = tmp_path / shadow.removesuffix("/__init__.py")
    assert done.returncode == muster_network.EXIT_SHADOWED
    assert done.stderr.startswith(f"error: {place} hides Muster's package `{name}` at {ROOT / name}\n  hint: ")
    assert "stranger" not in done.stderr


def test_a_folder_without_code_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "worker" / "logs").mkdir(parents=True)
    done = muster("version", path=[tmp_path, ROOT], folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_package_overwritten_by_another_distribution_is_named(site: Path, tmp_path: Path) -> None:
    ours = site / "worker" / "__init__.py"
    before = ours.read_bytes()
    ours.write_text("raise SystemExit('a stranger ran')")
    try:
        done = muster("version", path=[site], folder=tmp_path)
    finally:
        ours.write_bytes(before)
    assert done.returncode == muster_network.EXIT_SHADOWED
    assert f"another distribution has overwritten {ours}, a file of Muster" in done.stderr
    assert muster("version", path=[site], folder=tmp_path).returncode == 0


def test_the_list_of_packages_is_that_of_the_wheel(site: Path) -> None:
    tops = {path.parent.name for path in site.glob("*/__init__.py")}
    assert tops == {*muster_network.PACKAGES, "muster_network"}
