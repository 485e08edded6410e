"""`muster worker run` and `muster worker doctor`, which import the whole worker and the ledger client."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from cli.output.findings import show_findings
from cli.output.printing import JsonOption, show_json
from cli.output.progress import working
from cli.worker.daemon import StateOption
from protocol.errors import MusterError
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.findings import exit_code
from protocol.runtime.logs import configure_logs
from protocol.runtime.tracing import TracingSettings, tracing
from protocol.wire.nodes import RuntimeKind
from worker.app import run_worker
from worker.doctor.examination import examine
from worker.settings import WorkerSettings


@reads("worker", "tracing")
def run(
    config: ConfigOption = None,
    state: StateOption = None,
    pool: Annotated[int | None, typer.Option(min=1, help="Number of the pool to join.")] = None,
    runtime: Annotated[RuntimeKind | None, typer.Option(help="Runtime for tasks.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run the worker until SIGTERM or SIGINT.

    After the signal, the worker first stops the task and delivers queued files.
    """
    configure_logs(level=log_level, service=True)
    flags = {"state": state, "pool_id": pool, "runtime": runtime}
    settings = WorkerSettings.load(file=config, flags=flags)
    with tracing("worker", TracingSettings.load(file=config)):
        asyncio.run(run_worker(settings))


@reads("worker")
def doctor(config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Check everything that a node needs to join the pool.

    Exits with 0 if the worker can join, also with warnings, and with 1 if it can't.
    """
    settings, settings_error = None, None
    try:
        settings = WorkerSettings.load(file=config, flags={"state": state})
    except MusterError as error:
        settings_error = error
    configure_logs(level="ERROR")
    with working("checking"):
        findings = asyncio.run(examine(settings, settings_error))
    if as_json:
        show_json([asdict(finding) for finding in findings])
    else:
        show_findings(findings)
    raise typer.Exit(exit_code(findings))
