"""The README's commands exist with the options shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.devnet import run_muster

README = (Path(__file__).parents[2] / "README.md").read_text()
COMMANDS = re.findall(r"^muster ([^#\n]*?) *(?:#.*)?$", README, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_the_readme_has_the_options_shown(line: str) -> None:
    words = line.split()
    options = [word for word in words if word.startswith("--")]
    path = [word for word in words[: words.index(options[0]) if options else None] if word.islower()]
    said = run_muster(*path, "--help")
    assert said.code == 0, said.err
    assert f"muster {' '.join(path)}" in " ".join(said.out.split())
    for option in options:
        assert re.search(rf"{option}\b", said.out), f"{line}: no {option}"


def test_the_readmes_verify_options_are_those_that_download_prints() -> None:
    line = next(line for line in COMMANDS if line.startswith("rollouts verify"))
    assert re.findall(r"--\S+", line) == ["--model", "--chain-id", "--pool", "--beacon", "--salt"]
