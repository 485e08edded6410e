"""Lazy imports of commands, because importing all of them takes three seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer

Parts = Mapping[str, tuple[str, str]]
"""Name of a command: where it comes from, as `module` or `module:attribute`, and its line of the help page. A module
has a Typer `app`, or a function of the command's name. If it has `PARTS` too, these are the commands of its `app`."""

_mounted: set[tuple[int, str]] = set()


def mount(app: typer.Typer, parts: Parts, arguments: Sequence[str]) -> None:
    """Adds the parts that the arguments name, and the names of the others; completion needs them all in full."""
    completing = "_MUSTER_COMPLETE" in os.environ
    for name, (place, summary) in parts.items():
        mounted = (id(app), name) in _mounted
        if not completing and name not in arguments:
            if not mounted:
                app.command(name=name, help=summary)(_not_named)
            continue
        part = load(place, name)
        if isinstance(part, typer.Typer):
            mount(part, parts_of(place), arguments)  # also of one that was mounted: another command of it may be named
        if mounted:
            continue
        _mounted.add((id(app), name))
        if isinstance(part, typer.Typer):
            app.add_typer(part, name=name)
        else:
            app.command(name=name)(part)


def load(place: str, name: str) -> typer.Typer | Callable[..., Any]:
    """The part itself: a group of commands, or the function of one."""
    module, _, attribute = place.partition(":")
    found = import_module(module)
    part: typer.Typer | Callable[..., Any] = (
        getattr(found, attribute) if attribute else getattr(found, "app", None) or getattr(found, name)
    )
    return part


def parts_of(place: str) -> Parts:
    """The parts of a group that has some."""
    parts: Parts = getattr(import_module(place.partition(":")[0]), "PARTS", {})
    return parts


def _not_named() -> None:
    """Stands on the help page for a part that the command line does not name."""
