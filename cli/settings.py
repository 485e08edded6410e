"""`muster settings`: what each service can be told, where, and with which limits."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from cli.output import JsonOption, note, show_table
from protocol.errors import NotFound
from protocol.settings import Settings

PLACES = {
    "discovery": "discovery.settings:DiscoverySettings",
    "orchestrator": "orchestrator.settings:OrchestratorSettings",
    "worker": "worker.settings:WorkerSettings",
    "trainer": "trainer.run.settings:TrainerSettings",
    "validator": "validator.settings:ValidatorSettings",
    "sandbox": "rollouts.sandbox.settings:SandboxSettings",
}
"""Imported when asked for, so that the command line starts fast."""


def settings(
    service: Annotated[str, typer.Argument(help=" | ".join(PLACES))],
    as_json: JsonOption = False,
) -> None:
    """List every setting of a service."""
    if service not in PLACES:
        raise NotFound(f"there is no service {service}", hint=f"known are {', '.join(PLACES)}")
    module, _, name = PLACES[service].partition(":")
    kind: type[Settings] = getattr(import_module(module), name)
    rows = [
        (one.key, one.kind, "(required)" if one.required else one.default, one.variable, one.description)
        for one in kind.describe()
    ]
    show_table(("setting", "kind", "default", "variable", "meaning"), rows, as_json=as_json, empty="nothing to set")
    if not as_json:
        note(f"in a TOML file they stand in the table {kind.service}; a secret may be given as <setting>_file, too")
