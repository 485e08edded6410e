"""Finds environments by name: built-in families, and families that other packages register.

A package registers an environment by an entry point that names a `Family`:

    [project.entry-points."muster.environments"]
    crosswords = "crosswords.muster:family"

Built-in families need no entry point. So they work from a checkout too, and no package can replace them.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from rollouts.environments.errors import UnknownEnvironment
from rollouts.environments.factory import Family
from rollouts.environments.validation import CheckedEnvironment
from rollouts.sandbox import Sandboxes

GROUP = "muster.environments"
"""The entry point group."""

BUILT_IN = {
    "arithmetic": "rollouts.environments.arithmetic",
    "code": "rollouts.environments.code",
    "letters": "rollouts.environments.letters",
    "lookup": "rollouts.environments.lookup",
    "math": "rollouts.environments.mathematics",
    "mixture": "rollouts.environments.mixture",
    "python": "rollouts.environments.python",
    "reasoning-gym": "rollouts.environments.gym.environment",
    "search": "rollouts.environments.search",
    "served": "rollouts.environments.served",
}
"""Built-in families and the modules that define them as `family`; imported on demand."""

_INTEGRATIONS = {
    "openenv": "pip install --no-deps ./integrations/openenv openenv-core==0.3.0",
    "verifiers": "pip install ./integrations/verifiers",
}
"""Commands that install the families of the directory `integrations`, by name of the family."""


def load_environment(
    name: str,
    *,
    version: str | None = None,
    options: Mapping[str, JsonValue] | None = None,
    sandboxes: Sandboxes | None = None,
) -> CheckedEnvironment:
    """Loads the environment that a recipe names.

    Args:
        name: A family's name.
        version: As in `Environment.version`, or without the suffix after `+`; None for the installed one.
        options: Options of the family.
        sandboxes: Sandboxes for untrusted code, closed by the caller; by default shared by all environments of this
            process. A validator passes its own sandboxes, which accept no weaker isolation than namespaces.

    Raises:
        UnknownEnvironment: No family has the name, several packages register it, or its package can't be imported.
        UnknownEnvironmentVersion: The installed version or these options differ from the requested version.
        BadOptions: An option is unknown or has an invalid value.
        BadDataset: The file that the options name is missing, or has another digest.
    """
    source = _shared_sandboxes if sandboxes is None else lambda: sandboxes
    return find_family(name).load(version=version, options=options or {}, sandboxes=source)


def locate_options(name: str, options: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], tuple[Path, ...]]:
    """Returns an environment's options with absolute paths, and the files of this machine that they name.

    Raises:
        UnknownEnvironment: As in `load_environment`.
        BadOptions: An option is unknown or has an invalid value.
    """
    located, files = find_family(name).validated(options).located()
    return located.model_dump(mode="json", exclude_unset=True), files


def find_family(name: str) -> Family[Any]:
    """Returns the family with this name.

    Raises:
        UnknownEnvironment: As in `load_environment`.
    """
    if name in BUILT_IN:
        return _checked(name, import_module(BUILT_IN[name]).family)
    registered = [entry for entry in _registered() if entry.name == name]
    if len({entry.value for entry in registered}) > 1:
        raise UnknownEnvironment(
            f"environment {name} is registered more than once: {', '.join(map(_origin, registered))}",
            hint="uninstall all but one of these packages: the name is ambiguous",
        )
    if registered:
        return _checked(name, _load(registered[0]))
    if name in _INTEGRATIONS:
        raise UnknownEnvironment(
            f"environment {name} needs the package muster-{name}, which is not installed here",
            hint=f"in a checkout of Muster: {_INTEGRATIONS[name]} (docs/{name}.md)",
        )
    close = difflib.get_close_matches(name, environment_names(), n=1)
    raise UnknownEnvironment(
        f"there is no environment called {name[:80]!r}",
        hint=f"did you mean {close[0]}?"
        if close
        else f"known are: {', '.join(environment_names())}; other families are installed as packages",
    )


@functools.cache
def _shared_sandboxes() -> Sandboxes:
    return Sandboxes()


def environment_names() -> list[str]:
    """Returns every registered name, including families that may fail to load."""
    return sorted({*BUILT_IN, *(entry.name for entry in _registered())})


def _registered() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def _origin(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.value} of {entry.dist.name}"


def _load(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # a third-party package may raise anything on import
        why = f"{type(error).__name__}: {error}"
        raise UnknownEnvironment(
            f"environment {entry.name} is registered by {entry.value}, which can't be imported: {why}",
            hint="install or repair the package that registers the environment",
        ) from error


def _checked(name: str, found: object) -> Family[Any]:
    if not isinstance(found, Family) or found.name != name:
        raise UnknownEnvironment(
            f"the object registered as environment {name} is not a Family of that name",
            hint="the entry point must name an instance of rollouts.environments.factory.Family",
        )
    return found
