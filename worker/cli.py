"""`muster worker`: run the daemon, look at it, stop it in order."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from protocol import __version__
from protocol.errors import MusterError
from protocol.logs import configure_logs
from protocol.wire.nodes import RuntimeKind
from worker.app import run_worker
from worker.control import Control
from worker.doctor.examination import examine
from worker.doctor.finding import exit_code
from worker.settings import WorkerSettings, default_state
from worker.state import StateDirectory
from worker.status import WorkerStatus

app = typer.Typer(name="worker", no_args_is_help=True, help="Give this machine to a pool.")

ConfigOption = Annotated[Path | None, typer.Option(help="TOML file with a table [worker]; or MUSTER_CONFIG.")]
StateOption = Annotated[Path | None, typer.Option(help="The worker's state directory; default from the settings.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_FOLLOW_SECONDS = 0.5


@app.command()
def run(
    config: ConfigOption = None,
    state: StateOption = None,
    pool: Annotated[int | None, typer.Option(min=1, help="Number of the pool to join.")] = None,
    runtime: Annotated[RuntimeKind | None, typer.Option(help="What tasks run in.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run the worker until SIGTERM or SIGINT, which hand over what runs."""
    configure_logs(level=log_level)
    flags = {"state": state, "pool_id": pool, "runtime": runtime}
    asyncio.run(run_worker(WorkerSettings.load(file=config, flags=flags)))


@app.command()
def doctor(config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Check everything that joining needs. Exits 0 if all is well, 1 with warnings, 2 if the worker can't join."""
    settings, trouble = None, None
    try:
        settings = WorkerSettings.load(file=config, flags={"state": state})
    except MusterError as error:
        trouble = error
    configure_logs(level="ERROR")
    findings = asyncio.run(examine(settings, trouble))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            mark = {"ok": "ok     ", "warning": "warning", "failure": "FAILURE"}[finding.level]
            typer.echo(f"{mark}  {finding.check:<{width}}  {finding.found}")
            if finding.advice:
                typer.echo(f"{'':9}{'':<{width}}  → {finding.advice}")
    raise typer.Exit(exit_code(findings))


@app.command()
def status(config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show what the worker is doing, and why."""
    found = _control(config, state).status()
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    for name, value in _lines(found):
        typer.echo(f"{name:<13}{value}")


@app.command()
def logs(
    config: ConfigOption = None,
    state: StateOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    tail: Annotated[int, typer.Option(min=0, max=5000, help="So many of the last lines.")] = 100,
) -> None:
    """Show the output of the task that runs here."""
    control = _control(config, state)
    page = control.logs(tail=tail)
    while True:
        for line in page.lines:
            stamp = datetime.fromtimestamp(line.time_ms / 1000, UTC)
            typer.echo(f"{stamp:%H:%M:%S} {line.stream:<6} {_printable(line.text)}")
        if not follow:
            return
        if not page.lines:
            time.sleep(_FOLLOW_SECONDS)
        page = control.logs(since=page.next_sequence)


@app.command()
def drain(
    config: ConfigOption = None,
    state: StateOption = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take work again.")] = False,
) -> None:
    """Finish what runs and take nothing new; lasts until `--undo`, also over a restart."""
    _control(config, state).drain(on=not undo)
    typer.echo("takes work again" if undo else "takes nothing new; `muster worker status` shows when it is done")


@app.command()
def leave(config: ConfigOption = None, state: StateOption = None) -> None:
    """Stop what runs, deliver what waits, leave the pool on the ledger, and end the daemon. Stake is free then."""
    control = _control(config, state)
    control.leave()
    typer.echo("leaving: stopping the task and delivering what waits", err=True)
    while True:
        try:
            control.status()
        except MusterError:
            break
        time.sleep(_FOLLOW_SECONDS)
    typer.echo("the worker has ended; `muster node show` says whether the ledger has taken note")


@app.command()
def retry(
    item: Annotated[str, typer.Argument(help="Id of a parked file, from `muster worker status`.")],
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Try a file again that was parked because it could not be delivered."""
    _control(config, state).retry(item)
    typer.echo(f"{item} is tried again")


@app.command()
def upgrade() -> None:
    """Say how to install the newest release, and what happens to what runs."""
    typer.echo(
        f"this is muster {__version__}\n"
        f"1. {sys.executable} -m pip install --upgrade muster\n"
        "2. restart the worker (systemctl restart muster-worker): SIGTERM hands its task over first;\n"
        "   to keep a container running over the restart, use `kill -9` instead: the new worker finds it again"
    )


def _control(config: Path | None, state: Path | None) -> Control:
    """The daemon of the state directory that was named, or is in the settings, or is usual."""
    if state is None:
        try:
            state = WorkerSettings.load(file=config).state
        except MusterError:
            if config is not None:
                raise
            state = default_state()
    return Control(StateDirectory(state.expanduser().absolute()))


def _lines(found: WorkerStatus) -> list[tuple[str, str]]:
    lines = [
        ("node", found.node),
        ("pool", f"{found.pool_id}" + (f" at {found.orchestrator}" if found.orchestrator else "")),
        ("phase", found.phase + (" (draining)" if found.draining and found.phase != "draining" else "")),
    ]
    if found.detail:
        lines.append(("", found.detail))
    if found.node_state:
        heard = datetime.fromtimestamp(found.last_answer_ms / 1000, UTC)
        lines.append(
            ("orchestrator", f"says {found.node_state}, {heard:%H:%M:%S} UTC, next in {found.interval_s:.0f} s")
        )
    if found.silent_because:
        lines.append(("", f"not reached: {found.silent_because}"))
    report = found.assignment
    if report is not None:
        words = f"{found.task}: {report.state}" + (f", {report.restarts} restarts" if report.restarts else "")
        lines += [("task", words), *([("", report.detail)] if report.detail else [])]
    lines += [("discovery", f"{url}: {words}") for url, words in found.discovery.items()]
    lines.append(("runtime", found.runtime + (f": {found.runtime_trouble}" if found.runtime_trouble else "")))
    lines.append(("queue", ", ".join(f"{count} {stage}" for stage, count in found.queue.items() if count) or "empty"))
    lines += [("parked", text) for text in found.parked]
    lines += [("given up", text) for text in found.given_up]
    lines += [("notice", _printable(text)) for text in found.notices]
    lines += [("warning", text) for text in found.warnings]
    if abs(found.clock_skew_s) >= 1:
        lines.append(("clock", f"{found.clock_skew_s:+.1f} s against the orchestrator's"))
    return lines


def _printable(text: str) -> str:
    """A stranger's text, without the power to move the cursor."""
    return "".join(character if character.isprintable() or character == "\t" else "�" for character in text)
