"""`muster config`: shows which configuration is in force and where each value comes from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.configuration.command_tables import tables_of
from cli.configuration.sections import SECTIONS, load_configuration
from cli.configuration.settings import PLACES, settings_class
from cli.groups import CommandGroup
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_fields, show_json, show_table
from cli.output.tables import Column, Columns
from protocol.errors import NotFound
from protocol.runtime.configuration_file import ConfigOption, find_configuration_file, reads, searched_places
from protocol.runtime.configuration_text import nearest

_HELP = """Show which configuration is in force, and where each value comes from.

The first of these is read: --config FILE, $MUSTER_CONFIG, ./muster.toml, ./.devnet/muster.toml,
~/.config/muster/muster.toml. Relative paths in the file start from its folder. Options of a command override
environment variables such as $MUSTER_POOL_ID, and these override the file. Each line of the file is optional:

\b
\\[chain]
rpc = "http://127.0.0.1:8545"
chain_id = 31337
deployment = "deployment.json"
\\[keys]
directory = "keys"
password_file = "password"
\\[pool]
id = 1
orchestrator = "http://127.0.0.1:8080"
discovery = \\["http://127.0.0.1:8090"]
token_file = "owner-token"
"""

VALUES = Columns.of(Column("setting", least=24), Column("value", least=20), Column("source", least=20))

app = CommandGroup(name="config", help=_HELP, invoke_without_command=True)


@app.callback()
def config(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show which configuration is in force and where it came from."""
    if context.invoked_subcommand is not None:
        return
    read = load_configuration()
    show_fields(
        {
            "file": read.path,
            "chain": read.chain.endpoint,
            "chain_id": read.chain.chain_id,
            "deployment": read.chain.deployment,
            "keys": read.keys.directory,
            "pool": read.pool.id,
            "orchestrator": read.pool.orchestrator,
        },
        as_json=as_json,
    )


@app.command()
@reads(*SECTIONS, *PLACES)
@listing()
def show(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="A command, such as `worker run`, or a table, such as `worker`; default: the tables of most commands.",
            metavar="COMMAND",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a command reads: each setting, its value, and where the value comes from.

    Secrets are hidden. If a setting is missing or invalid, the command fails as the command that needs it would.
    """
    tables = _tables(context, command) if command else tuple(SECTIONS)
    file, fault = find_configuration_file(config), None
    rows: list[tuple[str, str, str]] = []
    for table in tables:
        values, invalid = settings_class(table).explain(file=file)
        rows += [(f"{table}.{one.key}", one.value, one.source or "MISSING") for one in values]
        fault = fault or invalid
    if as_json:
        show_json({"file": file, "settings": [dict(zip(VALUES.names, row, strict=True)) for row in rows]})
    else:
        show_table(VALUES, rows, empty="no settings")
        note(f"file: {file}" if file is not None else f"no file; looked for {', '.join(map(str, searched_places()))}")
    if fault is not None:
        raise fault


def _tables(context: typer.Context, words: list[str]) -> tuple[str, ...]:
    """Returns the tables that a command reads; a single word may also name a table.

    Raises:
        NotFound: There is no such command or table, or the command reads no configuration file.
    """
    if len(words) == 1 and words[0] in {*SECTIONS, *PLACES}:
        return (words[0],)
    found = _command(context, words)
    tables = tables_of(found.callback) if found.callback else ()
    if not tables:
        raise NotFound(
            f"`muster {' '.join(words)}` reads no configuration file", hint="its options are all that it takes"
        )
    return tables


def _command(context: typer.Context, words: list[str]) -> Any:  # noqa: ANN401 - a command of typer's own copy of click
    found: Any = context.find_root().command  # has the commands that this command line names
    for at, word in enumerate(words):
        commands = getattr(found, "commands", {})
        if word not in commands:
            names = [*commands, *([] if at else [*SECTIONS, *PLACES])]
            close = nearest(word, names)
            raise NotFound(
                f"there is no command or table `{' '.join(words)}`",
                hint=f"did you mean {' '.join([*words[:at], close])}?"
                if close
                else f"known: {', '.join(sorted(names))}",
            )
        found = commands[word]
    if hasattr(found, "commands"):
        raise NotFound(
            f"`{' '.join(words)}` is a group of commands", hint=f"name one of {', '.join(sorted(found.commands))}"
        )
    return found
