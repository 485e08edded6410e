"""Finds environments by name: the built-in ones, and those that other packages register.

A package adds one by an entry point that names a `Family`:

    [project.entry-points."muster.environments"]
    crosswords = "crosswords.muster:family"

The built-in families are looked up directly: they work from a checkout too, and no package can take their names.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import JsonValue

from rollouts.environments.errors import UnknownEnvironment
from rollouts.environments.factory import Family
from rollouts.environments.interface import Environment
from rollouts.sandbox import Sandboxes

GROUP = "muster.environments"
"""The entry point group."""

BUILT_IN = {
    "arithmetic": "rollouts.environments.arithmetic",
    "code": "rollouts.environments.code",
    "letters": "rollouts.environments.letters",
    "math": "rollouts.environments.mathematics",
}
"""Families of our own, by the module whose `family` they are; imported when asked for."""


def load_environment(
    name: str,
    *,
    version: str | None = None,
    options: Mapping[str, JsonValue] | None = None,
    sandboxes: Sandboxes | None = None,
) -> Environment:
    """Makes the environment that a recipe names.

    Args:
        name: A family's name.
        version: As in `Environment.version`, or without what stands after the `+`; None takes what is installed.
        options: What the family can be told.
        sandboxes: Where untrusted code runs, closed by whoever made them; by default those that all environments of
            this process share. A validator gives its own, which accept no weaker isolation than namespaces.

    Raises:
        UnknownEnvironment: No family has the name, several packages register it, or its package can't be imported.
        UnknownEnvironmentVersion: It is here in another version, or with other options than the version names.
        BadOptions: An option is unknown or has an impossible value.
        BadDataset: The file that the options name is not there, or is another one.
    """
    source = _shared_sandboxes if sandboxes is None else lambda: sandboxes
    return find_family(name).load(version=version, options=options or {}, sandboxes=source)


def families() -> list[Family[Any]]:
    """Every family that can be loaded here, by name."""
    return [find_family(name) for name in environment_names()]


def find_family(name: str) -> Family[Any]:
    """Looks a family up.

    Raises:
        UnknownEnvironment: As in `load_environment`.
    """
    if name in BUILT_IN:
        return _checked(name, import_module(BUILT_IN[name]).family)
    registered = [entry for entry in _registered() if entry.name == name]
    if len({entry.value for entry in registered}) > 1:
        raise UnknownEnvironment(
            f"environment {name} is registered more than once: {', '.join(map(_origin, registered))}",
            hint="uninstall all but one of these packages: which is meant can't be told",
        )
    if registered:
        return _checked(name, _load(registered[0]))
    close = difflib.get_close_matches(name, environment_names(), n=1)
    raise UnknownEnvironment(
        f"there is no environment called {name[:80]!r}",
        hint=f"did you mean {close[0]}?"
        if close
        else f"known are: {', '.join(environment_names())}; others come as packages",
    )


@functools.cache
def _shared_sandboxes() -> Sandboxes:
    return Sandboxes()


def environment_names() -> list[str]:
    """Every name that is registered here; what it names may still fail to load."""
    return sorted({*BUILT_IN, *(entry.name for entry in _registered())})


def _registered() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _origin(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.value} of {entry.dist.name}"


def _load(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # a stranger's package may raise anything while it is imported
        why = f"{type(error).__name__}: {error}"
        raise UnknownEnvironment(
            f"environment {entry.name} is registered by {entry.value}, which can't be imported: {why}",
            hint="install or mend the package that registers it",
        ) from error


def _checked(name: str, found: object) -> Family[Any]:
    if not isinstance(found, Family) or found.name != name:
        raise UnknownEnvironment(
            f"what is registered as environment {name} is no Family of that name",
            hint="the entry point names an instance of rollouts.environments.factory.Family",
        )
    return found
