"""`muster validator doctor`: checks what a validator needs, or measures how many files this machine examines."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output.findings import show_findings
from cli.output.printing import JsonOption, note, say, show_fields, show_json, show_table, warn
from cli.output.progress import working
from cli.output.tables import Columns
from protocol.errors import MusterError
from protocol.runtime.budgets import usable_cores
from protocol.runtime.clock import SystemClock
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.extras import require_extra
from protocol.runtime.findings import exit_code
from protocol.runtime.logs import configure_logs
from validator.settings import ValidatorSettings

if TYPE_CHECKING:
    from validator.doctor.throughput import Throughput

RATES = Columns.of(
    "rows_recomputed", "files_per_minute", "tokens_per_second", "nodes_like_this_machine", "cpu_seconds_per_file"
)


@reads("validator", "sandbox")
def doctor(
    config: ConfigOption = None,
    *,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download the run's version if it is not on this machine.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Recompute the recorded file of each numerics class; half a minute each.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A version's folder with its recipe, to measure with."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="With --model: examining processes.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="With --model: torch threads of each process.")] = 1,
    device: Annotated[
        str | None, typer.Option(help="With --model: cpu, cuda, cuda:N. Default: a GPU if there is one.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="With --model: file of calibrated limits.")
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="With --model: groups per file, as in the run's slots.")] = 4,
    files: Annotated[int, typer.Option(min=1, help="With --model: files to generate.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="With --model: times that each worker examines the files.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Check everything that a validator needs: machine, Redis, chain, role, orchestrator and the run's version.

    Exits with 0 if the validator can judge, also with warnings, and with 1 if it can't.

    With --model, it measures instead: it generates honest files by the version's recipe, examines them in as many
    processes as a validator would use, and says with how many nodes they keep up. This needs no settings.
    """
    configure_logs(level="ERROR")
    require_extra("rollouts")
    if model is not None:
        from validator.doctor.throughput import Sizing, measure_throughput  # noqa: PLC0415 - loads torch
        from validator.examination.settings import ExaminerSettings  # noqa: PLC0415

        examiner = ExaminerSettings(
            home=model, processes=workers, threads=threads, device=device, calibration=calibration
        )
        wanted = Sizing(model=model, examiner=examiner, groups=groups, files=files, rounds=rounds)
        busy = os.getloadavg()[0]
        with working("measuring"):
            found = asyncio.run(measure_throughput(wanted, clock=SystemClock(), progress=note))
        if as_json:
            show_json({**asdict(found), "load_average": busy})
            return
        _show(found)
        if busy > 0.5:
            warn(f"the load average was {busy:.1f} on {usable_cores()} cores: measure again on an idle machine")
        return
    from validator.doctor.diagnosis import diagnose  # noqa: PLC0415 - imports the ledger client

    settings, settings_error = None, None
    try:
        settings = ValidatorSettings.load(file=config)
    except MusterError as error:
        settings_error = error
    with working("checking"):
        clock = SystemClock()
        findings = asyncio.run(diagnose(settings, settings_error, clock=clock, fetch=fetch, check_classes=check))
    if as_json:
        show_json([asdict(finding) for finding in findings])
    else:
        show_findings(findings)
    raise typer.Exit(exit_code(findings))


def _show(found: Throughput) -> None:
    show_fields(
        {
            "model": f"{found.parameters / 1e6:.1f} million parameters, files of {found.arithmetic}",
            "workers": f"{found.workers} with {found.threads} torch threads each",
            "file": f"{found.rows} rows, {found.tokens:,.0f} generated tokens",
            "generation here": f"{found.generated_per_s:,.0f} tokens/s by one process with {found.threads} threads",
        }
    )
    rows = [
        (
            f"{one.share:.0%}",
            f"{one.files_per_minute:.2f}",
            f"{one.tokens_per_s:,.0f}",
            f"{one.nodes:.1f}",
            f"{one.cpu_s_per_file:.3f}",
        )
        for one in found.examined
    ]
    show_table(RATES, rows)
    say("a pool recomputes every row of new nodes, and fewer of nodes with a good record, down to its audit floor")
