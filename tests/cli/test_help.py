"""Contents of the help page, and the modules imported to show it."""

from __future__ import annotations

import pytest
import typer

from cli.lazy import load
from cli.main import PARTS
from cli.pool import commands as pool_commands
from cli.worker import commands
from tests.kit.command_line import imports_of
from tests.kit.devnet import run_muster

HEAVY = ("torch", "web3", "fastapi", "eth_account", "eth_utils", "numpy", "structlog")


LISTED = [(name, *part) for parts in (PARTS, commands.PARTS, pool_commands.PARTS) for name, part in parts.items()]


@pytest.mark.parametrize(("name", "place", "summary"), LISTED)
def test_the_help_page_shows_each_packages_own_summary(name: str, place: str, summary: str) -> None:
    part = load(place, name)
    own = part.info.help if isinstance(part, typer.Typer) else part.__doc__
    assert isinstance(own, str)
    assert own.splitlines()[0] == summary


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["wroker"], ["pool", "nodes"]])
def test_a_command_that_needs_no_heavy_library_imports_none(arguments: list[str]) -> None:
    done = imports_of(HEAVY, *arguments)
    assert done.found == []
    if arguments == ["--help"]:
        assert all(name in done.out for name in PARTS)
    if arguments == ["wroker"]:
        assert "Did you mean 'worker'" in done.err


def test_configuration_commands_are_listed_like_services() -> None:
    rows = {row["key"]: row for row in run_muster("settings", "pool", "--json").json()}
    assert rows["orchestrator"]["description"] == "URL of the pool's orchestrator"
    assert "MUSTER_POOL_TOKEN" in rows["token_file"]["description"]
    assert run_muster("settings", "chain", "--json").json()[0]["default"] == "http://127.0.0.1:8545"
