"""`muster settings`: what each service can be told, where, and with which limits."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import Annotated

import typer

from cli.output import JsonOption, note, show_json, show_table
from protocol.errors import NotFound
from protocol.runtime.setting_descriptions import variable_of
from protocol.runtime.settings import Settings

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
    told = kind.describe()
    if as_json:
        show_json([asdict(one) for one in told])
        return
    rows = [(one.key, one.kind, "(required)" if one.required else one.default, one.description) for one in told]
    show_table(("setting", "may be", "default", "meaning"), rows, as_json=False, empty="nothing to set")
    note(f"in a TOML file they stand in the table {kind.service}; a secret may be given as <setting>_file, too")
    note(f"as variables they begin with {variable_of(kind.service, '')}; dots become two underscores")
