"""Finds the configuration file of a command, and resolves relative paths in it.

The first of these is used: `--config FILE`, before or after the name of the command; the variable `MUSTER_CONFIG`;
`muster.toml` and `.devnet/muster.toml` in the working directory; `~/.config/muster/muster.toml`.

A relative path in the file is relative to the file's directory. A relative path on the command line or in a variable
is relative to the working directory. `~` stands for the home directory in all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from protocol.errors import InvalidInput, NotFound

VARIABLE = "MUSTER_CONFIG"

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])
_READS = "tables_read"


def reads(*tables: str) -> Callable[[CommandFunction], CommandFunction]:
    """Decorator of a command that names the tables of the configuration file which the command reads.

    Commands that take `typer.Context` need none: they read the tables of `cli.configuration.sections`. A command that
    reads no table refuses the option `--config`.
    """

    def mark(function: CommandFunction) -> CommandFunction:
        setattr(function, _READS, tables)
        return function

    return mark


def tables_read(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the tables that `reads` names; empty for an undecorated function.

    Other decorators, also around or inside `reads`, may have wrapped the function.
    """
    found: tuple[str, ...] | None = getattr(function, _READS, None)
    wrapped = getattr(function, "__wrapped__", None)
    return found if found is not None else tables_read(wrapped) if wrapped is not None else ()


def use_configuration_file(context: typer.Context, file: Path | None) -> Path | None:
    """Puts the path given by `--config` into `MUSTER_CONFIG` while the command runs.

    The command and the processes that it starts then use this file.
    """
    if file is not None and not context.resilient_parsing:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(file.absolute())
        context.call_on_close(lambda: _restore(before))
    return file


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Configuration file; also before the command, or in MUSTER_CONFIG.",
        callback=use_configuration_file,
    ),
]
"""Type of the option `--config` in the commands of services."""


def find_configuration_file(explicit: Path | None = None) -> Path | None:
    """Returns the absolute path of the configuration file to use; None if there is none.

    Raises:
        NotFound: The file named by `explicit` or by `MUSTER_CONFIG` does not exist.
    """
    named = explicit or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        if not named.is_file():
            raise NotFound(f"there is no configuration file {named}", hint=f"check --config and {VARIABLE}")
        return named.absolute()
    return next((place.absolute() for place in searched_places() if _is_there(place)), None)


def searched_places() -> list[Path]:
    """Returns the paths that are searched for a configuration file, in order of precedence."""
    home = home_configuration()
    return [Path("muster.toml"), Path(".devnet/muster.toml"), *([home / "muster.toml"] if home else [])]


def home_configuration() -> Path | None:
    """Returns the directory of this user's settings.

    None for a user without a home directory, as in some containers.
    """
    try:
        return Path.home() / ".config" / "muster"
    except RuntimeError:
        return None


def placed(path: Path | str, base: Path | None = None) -> Path:
    """Returns a path with `~` resolved; a relative path starts at `base`.

    Raises:
        InvalidInput: The path starts with `~`, and there is no home directory.
    """
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidInput(f"there is no home directory for {path}", hint="write the full path") from error
    return expanded if base is None else base / expanded


def _is_there(place: Path) -> bool:
    try:
        return place.is_file()
    except PermissionError:  # HOME can be another user's directory, for example after `su`
        return False


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before
