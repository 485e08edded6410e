"""Shell completion: which words a shell gets, and that it gets them without imports of commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.completion.index import make_index
from cli.completion.lookup import completions


@pytest.fixture(scope="module")
def index() -> dict[str, Any]:
    """Returns the index of all commands."""
    return make_index()


@pytest.mark.parametrize(
    ("before", "begun", "expected"),
    [
        ([], "tra", ["trainer"]),
        (["--config", "pool"], "tra", ["trainer"]),  # `pool` is the option's value
        (["--config=pool"], "tra", ["trainer"]),
        (["pool"], "no", ["node", "nodes"]),
        (["pool", "relays"], "", ["allow", "deny", "list"]),
        (["pool", "nodes"], "--st", ["--state"]),
        (["pool", "nodes", "--state"], "d", ["dead", "discovered", "draining"]),
        (["pool", "nodes", "--json"], "--st", ["--state"]),  # a flag takes no value
        (["worker", "run", "--runtime"], "", ["docker", "process"]),
        (["validator", "resolve", "KEY"], "acc", ["accepted"]),  # choices of the second argument
        (["keys", "new"], "", []),  # the shell completes file names
        (["pool", "nodes", "--task"], "", []),
        (
            ["no-such-command"],
            "-",
            ["--config", "--help", "--install-completion", "--show-completion", "--version", "-h"],
        ),
    ],
)
def test_a_command_line_is_completed(index: dict[str, Any], before: list[str], begun: str, expected: list[str]) -> None:
    assert sorted(word for word, _ in completions(index, before, begun)) == expected


def test_each_shell_gets_its_format_from_the_cache(tmp_path: Path) -> None:
    fish = {"_MUSTER_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "muster pool nodes --js"}
    bash = {"_MUSTER_COMPLETE": "complete_bash", "COMP_WORDS": "muster pool nodes --js", "COMP_CWORD": "3"}
    zsh = {"_MUSTER_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "muster pool node"}
    assert _completed(tmp_path, bash) == ("--json", 0)  # makes the index
    (file,) = (tmp_path / "muster").glob("completion-*.json")
    assert _completed(tmp_path, bash) == ("--json", 0)
    assert _completed(tmp_path, zsh)[0].startswith('_arguments \'*: :(("node":"Show one node\\\\: state and')
    assert _completed(tmp_path, fish | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})[0].startswith("--json\t")
    assert _completed(tmp_path, fish | {"_TYPER_COMPLETE_FISH_ACTION": "is-args"})[1] == 0
    none = fish | {"_TYPER_COMPLETE_ARGS": "muster keys new na", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert _completed(tmp_path, none)[1] == 1

    file.write_text("{")  # a damaged index is made again
    script = "import sys; from cli.completion.lookup import answer; answer(); print('typer' in sys.modules)"
    assert _completed(tmp_path, bash, "-c", script) == ("--json\nTrue", 0)
    assert _completed(tmp_path, bash, "-c", script) == ("--json\nFalse", 0)


def _completed(cache: Path, variables: dict[str, str], *command: str) -> tuple[str, int]:
    """Runs `muster` as a shell does for a completion; returns its output and exit status."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)} | variables
    run = subprocess.run(
        [sys.executable, *(command or ("-m", "cli"))], env=environment, capture_output=True, text=True, check=False
    )
    return run.stdout.strip(), run.returncode
