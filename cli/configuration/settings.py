"""`muster settings`: lists the settings of each service with types, limits and defaults."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from typing import Annotated

import typer

from cli.configuration.sections import SECTIONS
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_json, show_table
from cli.output.tables import Column, Columns
from protocol.errors import NotFound
from protocol.runtime.setting_descriptions import variable_of
from protocol.runtime.settings import Settings

PLACES = {
    "discovery": "discovery.settings:DiscoverySettings",
    "orchestrator": "orchestrator.settings:OrchestratorSettings",
    "gateway": "gateway.settings:GatewaySettings",
    "worker": "worker.settings:WorkerSettings",
    "trainer": "trainer.run.settings:TrainerSettings",
    "validator": "validator.settings:ValidatorSettings",
    "sandbox": "rollouts.sandbox.settings:SandboxSettings",
    "tracing": "protocol.runtime.tracing:TracingSettings",
}
"""Import path of the settings of each service; imported on demand, so that the command line starts fast."""

SETTINGS = Columns.of(
    Column("setting", least=20),
    Column("may_be", drop=2, least=12),
    Column("default", drop=1, least=12),
    Column("meaning", least=40),
)


@listing()
def settings(
    service: Annotated[str, typer.Argument(help=" | ".join([*PLACES, *SECTIONS]))],
    as_json: JsonOption = False,
) -> None:
    """List every setting of a service, or of a table that commands read."""
    if service not in PLACES and service not in SECTIONS:
        raise NotFound(f"there is no service {service}", hint=f"known names: {', '.join([*PLACES, *SECTIONS])}")
    descriptions = settings_class(service).describe()
    if as_json:
        show_json([asdict(one) for one in descriptions])
        return
    rows = [(one.key, one.kind, "(required)" if one.required else one.default, one.description) for one in descriptions]
    show_table(SETTINGS, rows, empty="nothing to set")
    note(f"in a TOML file they belong in the table {service}; <setting>_file may name a file that contains a secret")
    note(
        f"names of environment variables begin with {variable_of(service, '')}; "
        "two underscores replace each dot in a setting's name"
    )


def settings_class(service: str) -> type[Settings]:
    """Returns the class of a service's settings, or of a table that commands read."""
    if service in SECTIONS:
        return SECTIONS[service]
    module, _, name = PLACES[service].partition(":")
    kind: type[Settings] = getattr(import_module(module), name)
    return kind
