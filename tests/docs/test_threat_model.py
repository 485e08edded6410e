"""The threat model names existing settings, files, commands and figures, and every key of a systemd unit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.lazy import mount
from cli.main import PARTS, app
from discovery.settings import DiscoverySettings
from orchestrator.settings import OrchestratorSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/threat-model.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of the tables in a text, without header rows."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[0] not in {"what", "key", "limit of one instance"}]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_to_an_existing_page_and_heading() -> None:
    for name, anchor in re.findall(r"\]\(([\w.-]+\.md)(?:#([\w-]+))?\)", PAGE):
        assert (ROOT / "docs" / name).is_file(), name
        assert not anchor or anchor in anchors(ROOT / "docs" / name), f"{name}#{anchor}"


def test_figures_match_the_figures_page() -> None:
    figures = (ROOT / "docs/figures.md").read_text()
    quoted = [cells for cells in rows(section("Capacity of one instance")) if len(cells) == 3]
    assert len(quoted) >= 10
    for what, figure, command in quoted:
        assert figure in figures, f"docs/figures.md no longer says {figure!r} of {what!r}: quote it anew"
        (script,) = re.findall(r"BENCH=(\w+)", command)
        assert (ROOT / "benchmarks" / f"{script}.py").is_file()


def test_settings_named_as_limits_exist() -> None:
    for _, cell in [cells for cells in rows(section("Capacity of one instance")) if len(cells) == 2]:
        for part in cell.split("; "):
            fields = (DiscoverySettings if "(discovery)" in part else OrchestratorSettings).model_fields
            assert set(re.findall(r"`(\w+)`", part)) <= set(fields), part


def test_every_key_held_by_a_systemd_unit_is_in_the_table_of_stolen_keys() -> None:
    listed = {name for cells in rows(section("What a stolen key can do")) for name in re.findall(r"\w+", cells[0])}
    units = "".join(path.read_text() for path in (ROOT / "deploy/systemd").glob("*.service"))
    assert set(re.findall(r"/etc/muster/keys/(\w+)\.json", units)) <= listed
    assert {"provider", "owner", "manager", "relayer", "governor"} <= listed


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`muster ([^`]+)`", PAGE))))
def test_commands_named_on_the_page_exist(command: str) -> None:
    words = [word for word in command.split() if word.islower() and not word.startswith("-")][:3]
    mount(app, PARTS, words)
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for option in re.findall(r"--[a-z-]+", command):
        assert option in done.output
