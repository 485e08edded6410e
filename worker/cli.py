"""`muster worker` commands that talk to the daemon through its control socket.

These commands need no access to the chain.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from protocol import __version__
from protocol.errors import MusterError
from protocol.runtime.configuration_file import ConfigOption, placed
from protocol.runtime.extras import DISTRIBUTION
from worker.control import DaemonControl
from worker.settings import WorkerSettings, default_state
from worker.situation import WorkerStatus
from worker.state import StateDirectory

StateOption = Annotated[
    Path | None, typer.Option(help="The worker's state directory; by default the one in the settings.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_FOLLOW_SECONDS = 0.5


def status(config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show what the worker is doing, and why."""
    found = _control(config, state).status()
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    for name, value in _lines(found):
        typer.echo(f"{name:<13}{value}")


def logs(
    config: ConfigOption = None,
    state: StateOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they arrive.")] = False,
    tail: Annotated[int, typer.Option(min=0, max=5000, help="Number of last lines to print.")] = 100,
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


def drain(
    config: ConfigOption = None,
    state: StateOption = None,
    undo: Annotated[bool, typer.Option("--undo", help="Accept new tasks again.")] = False,
) -> None:
    """Finish the running task and accept no new task, until `--undo`, also after a restart."""
    _control(config, state).drain(on=not undo)
    typer.echo(
        "accepts new tasks again" if undo else "accepts no new task; `muster worker status` shows when it is done"
    )


def resume(config: ConfigOption = None, state: StateOption = None) -> None:
    """Lease slots again after leasing has stopped because work was not paid (see `status`)."""
    control = _control(config, state)
    was = control.status().stopped
    control.resume()
    typer.echo(
        "leases slots again; three more unpaid pieces of work in a row stop leasing again"
        if was
        else "leasing had not stopped"
    )


def leave(config: ConfigOption = None, state: StateOption = None) -> None:
    """Stop the task, deliver queued files, leave the pool on the ledger and end the daemon.

    Leaving frees the stake that the membership locks.
    """
    control = _control(config, state)
    control.leave()
    typer.echo("leaving: stopping the task and delivering queued files", err=True)
    while True:
        try:
            control.status()
        except MusterError:
            break
        time.sleep(_FOLLOW_SECONDS)
    typer.echo("the worker has ended; check with `muster node show` that the membership has ended too")


def retry(
    item: Annotated[str, typer.Argument(help="Id of a parked file, as `muster worker status` shows it.")],
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Retry a file that was parked because it could not be delivered."""
    _control(config, state).retry(item)
    typer.echo(f"delivery of {item} is retried")


def upgrade() -> None:
    """Print how to install the newest release, and what happens to the running task."""
    typer.echo(
        f"this is muster {__version__}\n"
        f"1. {upgrade_command()}\n"
        "2. restart the worker (systemctl restart muster-worker): SIGTERM first stops the task and delivers files;\n"
        "   to keep the container running during the restart, use `kill -9` instead: the new worker finds it again"
    )


def upgrade_command() -> str:
    """Returns the command that upgrades this installation from its recorded source.

    pip records the source in `direct_url.json` (PEP 610).
    """
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if not url.startswith("file://"):
        return f"{pip} --upgrade {DISTRIBUTION}"
    folder = shlex.quote(unquote(urlsplit(url).path))
    editable = " --editable" if origin.get("dir_info", {}).get("editable") else ""
    return f"git -C {folder} pull && {pip}{editable} {folder}"


def _control(config: Path | None, state: Path | None) -> DaemonControl:
    """Returns the client of the daemon with the given state directory.

    Without a given directory, it uses the state directory in the settings, or the default if the settings can't be
    read.
    """
    if state is None:
        try:
            state = WorkerSettings.load(file=config).state
        except MusterError:
            if config is not None:
                raise
            state = default_state()
    return DaemonControl(StateDirectory(placed(state, Path.cwd())))


def _lines(found: WorkerStatus) -> list[tuple[str, str]]:
    lines = [
        ("node", found.node),
        ("pool", f"{found.pool_id}" + (f" at {found.orchestrator}" if found.orchestrator else "")),
        ("phase", found.phase + (" (draining)" if found.draining and found.phase != "draining" else "")),
    ]
    if found.stopped:
        lines.append(("stopped", f"no leasing: {found.stopped}. Ask the pool's owner; then run `muster worker resume`"))
    if found.detail:
        lines.append(("", found.detail))
    if found.node_state:
        heard = datetime.fromtimestamp(found.last_answer_ms / 1000, UTC)
        lines.append(
            ("orchestrator", f"answered {found.node_state} at {heard:%H:%M:%S} UTC, next in {found.interval_s:.0f} s")
        )
    if found.silent_because:
        lines.append(("", f"can't be reached: {found.silent_because}"))
    report = found.assignment
    if report is not None:
        text = f"{found.task}: {report.state}" + (f", {report.restarts} restarts" if report.restarts else "")
        lines += [("task", text), *([("", report.detail)] if report.detail else [])]
    if found.refused:
        lines.append(("refused", _printable(found.refused)))
    lines += [("discovery", f"{url}: {state}") for url, state in found.discovery.items()]
    lines.append(("runtime", found.runtime + (f": {found.runtime_error}" if found.runtime_error else "")))
    lines.append(("queue", ", ".join(f"{count} {stage}" for stage, count in found.queue.items() if count) or "empty"))
    lines += [("parked", text) for text in found.parked]
    lines += [("given up", text) for text in found.given_up]
    lines += [("notice", _printable(text)) for text in found.notices]
    lines += [("warning", text) for text in found.warnings]
    if abs(found.clock_skew_s) >= 1:
        lines.append(("clock", f"{found.clock_skew_s:+.1f} s compared with the orchestrator's"))
    return lines


def _printable(text: str) -> str:
    """Replaces control characters, so that untrusted text can't control the terminal."""
    return "".join(character if character.isprintable() or character == "\t" else "�" for character in text)
