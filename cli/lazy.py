"""Lazy imports of commands, because importing all of them takes three seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer

Parts = Mapping[str, tuple[str, str]]
"""Commands by name. A value has two strings: an import path, and the command's line on the help page.

The import path is `module:attribute`, or `module` alone. A module that is named alone defines a Typer `app`, or a
function with the command's name. If it also defines `PARTS`, these are the commands that `mount` adds to its `app`.
"""

_mounted: set[tuple[int, str]] = set()
"""Commands that `mount` has added: id of the Typer app, and name of the command."""
_placeholders: set[tuple[int, str]] = set()
"""Names of commands for which `mount` has added a placeholder; a command that is added later replaces it."""


def mount(app: typer.Typer, parts: Parts, arguments: Sequence[str], *, every: bool = False) -> None:
    """Adds commands to `app`: real ones for the names in `arguments`, placeholders for all others.

    Args:
        app: The group that gets the commands.
        parts: The commands.
        arguments: The command line without the program's name.
        every: Add all commands as real ones. Shell completion needs them.
    """
    for name, (place, summary) in parts.items():
        key = id(app), name
        mounted = key in _mounted
        if not every and name not in arguments:
            if not mounted and key not in _placeholders:
                _placeholders.add(key)
                app.command(name=name, help=summary)(_not_named)
            continue
        part = load(place, name)
        if isinstance(part, typer.Typer):
            # Also if it is mounted, because `arguments` may name new commands of the group.
            mount(part, parts_of(place), arguments, every=every)
        if mounted:
            continue
        _mounted.add(key)
        if isinstance(part, typer.Typer):
            app.add_typer(part, name=name)
        else:
            app.command(name=name)(part)


def load(place: str, name: str) -> typer.Typer | Callable[..., Any]:
    """Imports and returns a group of commands, or the function of one command."""
    module, _, attribute = place.partition(":")
    found = import_module(module)
    part: typer.Typer | Callable[..., Any] = (
        getattr(found, attribute) if attribute else getattr(found, "app", None) or getattr(found, name)
    )
    return part


def parts_of(place: str) -> Parts:
    """Returns the commands in a group module's `PARTS`; empty if there are none."""
    parts: Parts = getattr(import_module(place.partition(":")[0]), "PARTS", {})
    return parts


def _not_named() -> None:
    """Placeholder on the help page for a command that the arguments do not name."""
