"""The Dockerfiles' sources reach the engine: `.dockerignore` excludes none of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "deploy/images").glob("*/Dockerfile"))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_every_copied_path_is_in_the_build_context(dockerfile: Path) -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    context = exclude_paths(str(ROOT), patterns, dockerfile=str(dockerfile.relative_to(ROOT)))
    copied = [
        source
        for instruction in re.findall(r"^COPY (.+)$", dockerfile.read_text(), re.MULTILINE)
        if not instruction.startswith("--from=")
        for source in instruction.split()[:-1]
        if not source.startswith("--")
    ]
    assert copied
    bases = {re.findall(r"^ARG BASE=(\S+@sha256:\w+)$", path.read_text(), re.MULTILINE)[0] for path in DOCKERFILES}
    assert len(bases) == 1
    assert [source for source in copied if source not in context] == []


TEST_TOOLS = {"pytest", "mypy", "ruff", "hypothesis", "schemathesis", "import-linter", "pre-commit", "eth-tester"}
INSTALL = (ROOT / "deploy/images/install.sh").read_text()
CYCLONEDX = ROOT / ".tools/helm/venv/bin/cyclonedx-py"


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+)==", (ROOT / "deploy/locks" / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("lock", ["services.lock", "rollouts.lock", "vllm.lock", "reasoning-gym.lock"])
def test_no_image_installs_tools_of_the_tests(lock: str) -> None:
    assert lock in INSTALL
    assert not locked(lock) & TEST_TOOLS
    assert "requirements.lock" not in INSTALL + "".join(path.read_text() for path in DOCKERFILES)
    assert lock != "services.lock" or not locked(lock) & {"torch", "transformers", "pyarrow"}


@pytest.mark.parametrize("lock", ["services.lock", "rollouts.lock"])
def test_images_have_the_versions_of_checkouts(lock: str) -> None:
    def entries(path: Path) -> dict[str, str]:
        found = (line.split(" --hash", 1) for line in path.read_text().replace("\\\n", " ").splitlines())
        return {line[0].split("==")[0]: " ".join("".join(line).split()) for line in found}

    everything = entries(ROOT / "requirements.lock")
    different = {name for name, entry in entries(ROOT / "deploy/locks" / lock).items() if everything[name] != entry}
    assert different == set()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_every_lock_that_an_image_may_install_is_copied(dockerfile: Path) -> None:
    recipe = dockerfile.read_text()
    stages = recipe.split("\nFROM ")
    for stage in stages[1:]:
        if "install.sh" not in stage:
            continue
        kinds = r"services" if "install.sh services" in stage else r"cpu|cuda" + (r"|vllm" if "ENGINE" in stage else "")
        wanted = set()
        for case in re.findall(rf"^  (?:{kinds})\)(.*?);;", INSTALL, re.MULTILINE | re.DOTALL):
            wanted |= set(re.findall(r"\$locks/([\w-]+\.lock)", case))
        assert wanted
        assert wanted | {"sbom.lock"} <= {Path(name).name for name in re.findall(r"deploy/locks/\S+", stage)}


@pytest.mark.skipif(not CYCLONEDX.exists(), reason="there is no .tools/helm (deploy/setup/helm.sh makes it)")
def test_the_list_of_an_environments_packages_is_cyclonedx(tmp_path: Path) -> None:
    (line,) = re.findall(r"^/opt/sbom/bin/cyclonedx-py (.+)$", INSTALL, re.MULTILINE)
    options = [word for word in line.split() if word.startswith("--output-r")]
    command = [str(CYCLONEDX), "environment", *options, "--output-file", str(tmp_path / "sbom.json"), sys.executable]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    document = json.loads((tmp_path / "sbom.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    listed = {re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"] for one in document["components"]}
    for entry in re.findall(r"^([\w.-]+)==(\S+) \\$", (ROOT / "deploy/locks/services.lock").read_text(), re.MULTILINE):
        assert listed[re.sub(r"[-_.]+", "-", entry[0]).lower()] == entry[1]
