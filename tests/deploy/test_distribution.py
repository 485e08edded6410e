"""The distribution's name in every document, and errors of a plain installation without extras."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from protocol.runtime.extras import DISTRIBUTION, EXTRA_OF_MODULE

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ATTACKS = tomllib.loads((ROOT / "deploy" / "attacks" / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
STRANGER = re.compile(
    r"\bmuster\[|\b(?:pip3?|pipx|uv)\b[^\n|;&]*?\s(?:install|add)\b[^\n|;&#]*?\s['\"]?muster(?![\w/.-])"
)
"""Text that installs the distribution `muster`, which belongs to another project."""
TEXT = {".py", ".md", ".toml", ".sh", ".yml", ".html", ".mjs", ".service", ".conf", ".json", ""}


def texts() -> Iterator[Path]:
    for top in ROOT.iterdir():
        if top.is_file() and top.suffix in TEXT:
            yield top
        elif top.is_dir() and top.name in {*PACKAGES, "docs", "deploy", "tests", "benchmarks", ".ci"}:
            yield from (path for path in top.rglob("*") if path.is_file() and path.suffix in TEXT)


def test_no_document_installs_another_projects_package() -> None:
    assert PROJECT["project"]["name"] == DISTRIBUTION == "muster-network"
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts()
        if path != Path(__file__)
        for match in STRANGER.finditer(path.read_text(errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install muster", True),
        ("pip install 'muster[s3]'", True),
        ("install muster[vllm] first", True),
        ("python -m pip install --upgrade muster\n", True),
        ("uv pip install muster", True),
        ("pip install muster-network", False),
        ("pip install 'muster-network[s3]'", False),
        ("/opt/muster/bin/pip install .", False),
        ("pip install /opt/muster/wheel.whl", False),
        ("pip install . && systemctl restart muster-worker", False),
    ],
)
def test_the_pattern_distinguishes_the_two_package_names(text: str, wrong: bool) -> None:
    assert bool(STRANGER.search(text)) is wrong


def test_extras_refer_to_the_project_by_its_own_name() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    own = [each for several in extras.values() for each in several if each.startswith("muster")]
    assert own
    assert all(each.startswith(f"{DISTRIBUTION}[") or each == ATTACKS["project"]["name"] for each in own)
    assert set(EXTRA_OF_MODULE.values()) <= extras.keys()


def test_every_module_missing_from_a_plain_installation_names_its_extra() -> None:
    plain = installed_with(PROJECT["project"]["dependencies"])
    distributions = packages_distributions()
    lacking = {
        module
        for module in imported_modules()
        if module in distributions and not plain & {canonicalize_name(name) for name in distributions[module]}
    }
    assert lacking <= EXTRA_OF_MODULE.keys()


def installed_with(requirements: list[str]) -> set[str]:
    """Returns the names of the distributions that these requirements install."""
    found: set[str] = set()
    waiting = [(Requirement(each), frozenset[str]()) for each in requirements]
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        markers = extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in markers):
            continue
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        found.add(name)
        try:
            waiting += [(Requirement(each), wanted) for each in requires(name) or ()]
        except PackageNotFoundError:
            continue
    return found


def imported_modules() -> set[str]:
    """Returns top-level third-party modules imported anywhere in the product, including inside functions."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


WITHOUT_EXTRAS = """
import sys
from importlib.machinery import ModuleSpec

blocked = set(sys.argv[1].split(","))

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] in blocked else found(name, *more)

from cli.main import main
for line in sys.argv[2:]:
    sys.argv = ["muster", *line.split()]
    print("==", line, file=sys.stderr, flush=True)
    try:
        main()
    except SystemExit as end:
        print("exit", end.code, file=sys.stderr, flush=True)
"""
NEEDY = {
    "validator run": "rollouts",
    "trainer run": "rollouts",
    "devnet --ledger-only": "devnet",
    "devnet --chain anvil": "rollouts",
    "trainer eval .": "rollouts",
    "rollouts show {file} --ids": "rollouts",
    "serve .": "rollouts",
    "rollouts verify {file} --model . --chain-id 1 --pool 1 --beacon 0x00 --salt 0x00": "rollouts",
    "recipe init . --environment arithmetic": "rollouts",
    "trainer try .": "rollouts",
    "validator calibrate --model .": "rollouts",
    "validator numerics": "rollouts",
}


def without_modules(modules: set[str], lines: list[str], folder: Path) -> str:
    """Runs `muster` commands one after the other as if modules were not installed; returns the standard error."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, ",".join(sorted(modules)), *lines],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)},
    )
    return done.stderr


def test_a_command_without_its_extra_names_the_extra(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    file.touch()
    lines = [line.format(file=file) for line in NEEDY]
    stderr = without_modules(set(EXTRA_OF_MODULE), lines, tmp_path)
    said = dict(part.split("\n", 1) for part in stderr.split("== ")[1:])
    for line, extra in zip(lines, NEEDY.values(), strict=True):
        assert f"pip install '{DISTRIBUTION}[{extra}]'" in said[line], stderr
        assert said[line].endswith("exit 1\n"), stderr


SERVICES = {
    "discovery, orchestrator, origin, relay, worker": (
        "discovery serve",
        "orchestrator serve",
        "shardcast origin --watch nowhere",
        "shardcast relay --upstream http://127.0.0.1:1 --store s",
        "worker run",
    ),
    "validator": ("validator run",),
    "trainer": ("trainer run",),
}


@pytest.mark.parametrize("machine", SERVICES)
def test_the_documented_installation_has_what_the_service_imports(machine: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operators.md").read_text()
    (extras,) = re.findall(
        rf"^\| {re.escape(machine)} \| `pip install '?\.(?:\[([\w,-]+)\])?'?` \|$", page, re.MULTILINE
    )
    wanted = PROJECT["project"]["optional-dependencies"]
    plain = PROJECT["project"]["dependencies"]
    present = installed_with([*plain, *(each for extra in extras.split(",") if extra for each in wanted[extra])])
    distributions = packages_distributions()
    absent = {
        module
        for module in EXTRA_OF_MODULE
        if not present & {canonicalize_name(name) for name in distributions.get(module, ())}
    }
    assert absent
    said = without_modules(absent, list(SERVICES[machine]), tmp_path)
    assert "is not installed" not in said
    assert said.count("exit 1") == len(SERVICES[machine])
