"""docs/contributors.md names commands that exist; tests/e2e/test_stranger.py runs those of its setup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.devnet import run_muster

PAGE = (Path(__file__).parents[2] / "docs" / "contributors.md").read_text()
OPTIONS = PAGE[PAGE.index("| option | effect |") : PAGE.index("If the endpoint's URL")]


@pytest.mark.parametrize("line", sorted(set(re.findall(r"`muster ([a-z][^`]*)`", PAGE))))
def test_each_command_in_the_text_exists_with_its_options(line: str) -> None:
    words = line.split()
    options = [word for word in words if word.startswith("--")]
    before = words[: words.index(options[0])] if options else words
    path = [word for word in before if re.fullmatch("[a-z-]+", word)]
    said = run_muster(*path, "--help")
    assert said.code == 0, said.err
    for option in options:
        assert re.search(rf"{option}\b", said.out), f"{line}: no {option}"


def test_the_options_of_the_table_exist() -> None:
    help_page = run_muster("worker", "init", "--help").out
    named = re.findall(r"^\| `(--[a-z-]+)", OPTIONS, re.MULTILINE)
    assert len(named) >= 5
    for option in named:
        assert option in help_page
