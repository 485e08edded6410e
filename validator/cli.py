"""Command `muster validator run`, which runs the service; `cli/validator` adds the operator's commands."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from protocol.http.serving.service import run_service
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.extras import require_extra
from protocol.runtime.logs import configure_logs
from protocol.runtime.tracing import TracingSettings, tracing
from validator.settings import ValidatorSettings

app = typer.Typer(name="validator", no_args_is_help=True, help="Run and operate a pool's validator.")


@app.callback()
def validator() -> None:
    """Run and operate a pool's validator."""


@app.command()
@reads("validator", "sandbox", "tracing")
def run(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free one.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run the validator service until SIGTERM or SIGINT."""
    configure_logs(level=log_level, service=True)
    require_extra("rollouts")  # only the examiner's process loads torch
    # This import takes a second, which other commands don't need.
    from validator.service import check_pool, claimed, open_validator  # noqa: PLC0415

    configure_logs(level=log_level, service=True)  # again, because imported libraries install log handlers
    settings = ValidatorSettings.load(file=config, flags={"host": host, "port": port})
    asyncio.run(check_pool(settings))
    with claimed(settings.directory), tracing("validator", TracingSettings.load(file=config)):
        run_service(open_validator(settings), host=settings.host, port=settings.port)
