"""docs/deployment.md agrees with the files; tests/e2e/test_compose.py starts a pool by its commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.kit.devnet import run_muster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+ [\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
HELM = ROOT / ".tools" / "helm" / "helm"
COMPOSE = ROOT / ".tools" / "compose" / "docker-compose"


def lines(block: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in BLOCKS[block].splitlines()]


def test_every_image_is_built_from_an_existing_dockerfile_and_target() -> None:
    tags = set()
    for words in lines("sh images"):
        assert words[:2] == ["docker", "build"]
        recipe = (ROOT / words[words.index("-f") + 1]).read_text()
        if "--target" in words:
            assert f" AS {words[words.index('--target') + 1]}\n" in recipe
        tags.add(words[words.index("-t") + 1])
    compose = (ROOT / "deploy/compose/pool.yml").read_text() + (ROOT / "deploy/compose/worker.yml").read_text()
    assert set(re.findall(r"_IMAGE:-(muster/[\w:.]+)\}", compose)) <= tags


@pytest.mark.skipif(not COMPOSE.exists(), reason="there is no .tools/compose (deploy/setup/compose.sh makes it)")
def test_the_commands_of_compose_accept_the_copied_folder(tmp_path: Path) -> None:
    copied = [line for line in BLOCKS["sh init"].splitlines() if not line.startswith("docker")]
    script = "\n".join(copied).replace("deploy/compose", str(ROOT / "deploy/compose"))
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    folder = tmp_path / "pool-1"
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    used = [*lines("sh init"), *lines("sh up"), *lines("sh worker")]
    commands = [words for words in used if words[:2] == ["docker", "compose"]]
    assert len(commands) == 5
    for words in commands:
        file = words[words.index("-f") + 1]
        listed = subprocess.run(
            [str(COMPOSE), "--profile", "init", "-f", file, "config", "--format", "json"],
            cwd=folder,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        if "run" in words:
            assert words[words.index("--rm") + 1] in json.loads(listed.stdout)["services"]


@pytest.mark.parametrize("block", ["sh create", "sh secret", "sh worker"])
def test_the_commands_of_muster_exist_with_their_options(block: str) -> None:
    for words in lines(block):
        command = ["muster", "worker", *words[words.index("init") :]] if "init" in words else words
        if command[0] != "muster":
            continue
        path = [word for word in command[1:] if re.fullmatch("[a-z-]+", word) and not word.startswith("--")]
        said = run_muster(*path[:2], "--help")
        assert said.code == 0, said.err
        for option in (word for word in command if word.startswith("--")):
            assert option in said.out


@pytest.mark.parametrize("block", ["sh compose_backup", "sh compose_restore", "sh helm_backup", "sh helm_restore"])
def test_backups_name_services_and_commands_that_exist(block: str) -> None:
    compose = (ROOT / "deploy/compose/pool.yml").read_text()
    templates = ROOT / "deploy/helm/muster-pool/templates"
    found = 0
    for words in lines(block):
        if "maintenance=true" in words:
            assert "maintenance: false " in (templates.parent / "values.yaml").read_text()
        if "admin" not in words:
            continue
        found += 1
        at = words.index("admin")
        said = run_muster(*words[at : at + 2], "--help")
        assert said.code == 0
        assert all(word in said.out for word in words[at:] if word.startswith("--"))
        if words[0] == "docker":  # the service of this name runs the command of this name
            assert "\n  admin:\n" in compose
            secrets = re.findall(r"\n    secrets: \[(backup-\S+)[,\]]", compose)
            assert {Path(word).name for word in words if word.startswith("/run/secrets/")} <= set(secrets)
        else:
            service = words[words.index("-c") + 1]
            assert words[words.index("exec") + 1] == f"pool-{service}-0"
            assert f"name: {service}\n" in (templates / f"{service}.yaml").read_text()
    assert found


@pytest.mark.skipif(not HELM.exists(), reason="there is no .tools/helm (deploy/setup/helm.sh makes it)")
@pytest.mark.parametrize(("chart", "values"), [("muster-pool", "pool.yaml"), ("muster-worker", "worker.yaml")])
def test_the_values_on_the_page_render(chart: str, values: str, tmp_path: Path) -> None:
    (tmp_path / values).write_text(BLOCKS[f"yaml {values}"])
    for command in ("lint", "template"):
        words = [str(HELM), command, str(ROOT / "deploy/helm" / chart), "--values", str(tmp_path / values)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    if chart == "muster-worker":
        assert "name: release-name-worker" in done.stdout
        assert "workers-worker-0.keystore" in PAGE  # POD.keystore; `helm install workers` names the pods


def test_the_memory_on_the_page_is_that_of_the_limits() -> None:
    compose = (ROOT / "deploy/compose/pool.yml").read_text()
    sums = {
        name: sum(int(mib) for mib in re.findall(r"_MIB:-(\d+)\}", text)) / 1024
        for name, text in re.findall(r"      MIB_(\w+): (.*?)\n(?=      MIB_|    volumes)", compose, re.DOTALL)
    }
    assert f"{sums['ALWAYS']:.1f} GiB\nwithout a profile" in PAGE
    assert f"{sums['TRAINING']:.0f} GiB more for `training`" in PAGE
    assert f"{sums['MONITORING']:.1f} GiB for `monitoring`, {sums['GATEWAY']:.1f} GiB for `gateway`" in PAGE
