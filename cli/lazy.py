"""Lazy imports of commands, because importing all of them takes three seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer

Parts = Mapping[str, tuple[str, str]]
"""Commands by name.

A value is the import path, `module` or `module:attribute`, and the line on the help page. A module without an attribute
has a Typer `app`, or a function with the name of the command. The `PARTS` of such a module are the commands of `app`.
"""

_mounted: set[tuple[int, str]] = set()


def mount(app: typer.Typer, parts: Parts, arguments: Sequence[str]) -> None:
    """Imports the commands named in `arguments` and adds placeholders for others; shell completion imports all."""
    completing = "_MUSTER_COMPLETE" in os.environ
    for name, (place, summary) in parts.items():
        mounted = (id(app), name) in _mounted
        if not completing and name not in arguments:
            if not mounted:
                app.command(name=name, help=summary)(_not_named)
            continue
        part = load(place, name)
        if isinstance(part, typer.Typer):
            mount(part, parts_of(place), arguments)  # even if mounted: `arguments` may name further commands in it
        if mounted:
            continue
        _mounted.add((id(app), name))
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
