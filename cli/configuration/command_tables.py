"""Gives each command the configuration that it reads, and refuses `--config` for commands that read none.

`configure` applies this to a whole tree of commands. A command that takes `typer.Context` finds the configuration in
`context.obj`. It is read when such a command runs, so an invalid file can't stop a command that does not need it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from cli.configuration.sections import SECTIONS, load_configuration
from protocol.runtime.configuration_file import tables_read


class ConfiguredCommand(TyperCommand):
    """A command of `muster`; it refuses `--config` if it reads no configuration file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own copy of click
        """Parses the command line; refuses `muster --config FILE` before a command that reads no file.

        Raises:
            typer.BadParameter: `--config` was given before the name of such a command.
        """
        root = ctx.find_root()
        source = root.get_parameter_source("config")
        if source is not None and source.name == "COMMANDLINE" and self.callback and not tables_of(self.callback):
            name = "muster" + ctx.command_path.removeprefix(root.command_path)
            own = any("--config" in each.opts for each in self.params)
            advice = "give its own --config after its name" if own else "leave out --config"
            raise typer.BadParameter(
                f"`{name}` reads no configuration file: {advice}", ctx=ctx, param_hint="'--config'"
            )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own copy of click
        """Reads the configuration if the command takes a context, then runs the command."""
        if self.callback and _takes_context(self.callback):
            ctx.obj = load_configuration()
        return super().invoke(ctx)


def configure(app: typer.Typer) -> None:
    """Makes every command of an app and of its groups a `ConfiguredCommand`."""
    for command in app.registered_commands:
        command.cls = ConfiguredCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            configure(group.typer_instance)


def tables_of(callback: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the tables of the configuration file that a command reads; empty if it reads no file."""
    return tables_read(callback) or (tuple(SECTIONS) if _takes_context(callback) else ())


def _takes_context(callback: Callable[..., Any]) -> bool:
    """Returns whether a command reads `context.obj`; one that names its tables with `reads` does not."""
    parameters = () if tables_read(callback) else inspect.signature(inspect.unwrap(callback)).parameters.values()
    return any(each.annotation in {"typer.Context", typer.Context} for each in parameters)
