"""Links and file paths in the developer documents exist, and their import rules hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path.name != "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_named_in_the_docs_exist(name: str) -> None:
    packages = "protocol|ledger|discovery|orchestrator|worker|rollouts|validator|shardcast|trainer|cli|docs|tests"
    text = (ROOT / name).read_text()
    paths = re.findall(rf"`((?:{packages})/[\w./-]*)`", text)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert not [path.name for path in folder.glob("0*.md") if f"({path.name})" not in index]


def test_tests_import_helpers_from_the_kit_or_their_own_folder() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
        for module in re.findall(r"^from (tests[\w.]*) import", path.read_text(), flags=re.MULTILINE)
        if module.rpartition(".")[0] not in {"tests.kit", own := ".".join(path.parent.relative_to(ROOT).parts)}
        and module not in {"tests.kit", own}
    ]
    assert not wrong, "move shared helpers to tests/kit"
