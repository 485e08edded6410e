"""Makes the index of all commands, options and choices."""

from __future__ import annotations

from typing import Any

import typer

from cli.lazy import mount
from cli.main import PARTS, app


def make_index() -> dict[str, Any]:
    """Imports every command; returns the command `muster` with all its commands, options and arguments."""
    mount(app, PARTS, [], every=True)
    return _command(typer.main.get_command(app))


def _command(command: Any) -> dict[str, Any]:  # noqa: ANN401 - a command of typer's own copy of click
    options, arguments = [], []
    context = typer.Context(command)
    for parameter in command.params:
        choices = [str(item.value) for item in parameter.shell_complete(context, "") if item.type == "plain"]
        if parameter.param_type_name == "argument":
            arguments.append(choices)
        elif not parameter.hidden:
            options.append(
                {
                    "names": [*parameter.opts, *parameter.secondary_opts],
                    "value": not (parameter.is_flag or parameter.count),
                    "choices": choices,
                    "help": (parameter.help or "").splitlines()[0] if parameter.help else "",
                }
            )
    commands = getattr(command, "commands", {})
    return {
        "help": command.get_short_help_str(limit=200),
        "options": [*options, {"names": ["-h", "--help"], "value": False, "choices": [], "help": "Show this message."}],
        "arguments": arguments,
        "commands": {name: _command(one) for name, one in sorted(commands.items()) if not one.hidden},
    }
