"""Typer groups: coroutine functions as commands, and commands whose modules are imported when they are named."""

from __future__ import annotations

import asyncio
import inspect
from typing import Annotated

import typer
from typer.testing import CliRunner

from cli.groups import CommandGroup
from cli.lazy import mount

app = CommandGroup()


@app.command()
async def wait(times: Annotated[int, typer.Option(min=1, help="Number of turns.")] = 1) -> None:
    """Waits for some turns of the event loop."""
    for _ in range(times):
        await asyncio.sleep(0)
    typer.echo(f"waited {times}")
    raise typer.Exit(times)


@app.command()
def direct() -> None:
    """Prints a word without an event loop."""
    typer.echo("direct")


def test_coroutine_functions_run_with_their_options_and_exit_codes() -> None:
    result = CliRunner().invoke(app, ["wait", "--times", "3"])
    assert (result.output, result.exit_code) == ("waited 3\n", 3)
    assert CliRunner().invoke(app, ["wait", "--times", "0"]).exit_code == 2


def test_plain_functions_run_as_before() -> None:
    assert CliRunner().invoke(app, ["direct"]).output == "direct\n"


def test_decorated_functions_stay_coroutine_functions() -> None:
    assert inspect.iscoroutinefunction(wait)


def test_each_command_has_one_placeholder_however_often_a_process_runs_commands() -> None:
    app = CommandGroup()
    parts = {"keys": ("cli.keys", "Keys."), "token": ("cli.token", "Tokens.")}
    for _ in range(3):
        mount(app, parts, ["keys", "list"])
    assert [command.name for command in app.registered_commands] == ["token"]
    mount(app, parts, ["token", "new"])
    assert [group.name for group in app.registered_groups] == ["keys", "token"]
    assert "Make" in CliRunner().invoke(app, ["keys", "--help"]).output
    assert "new" in CliRunner().invoke(app, ["token", "--help"]).output
