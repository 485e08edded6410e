"""`muster worker` commands that talk to the daemon through its control socket.

These commands need no access to the chain.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import unquote, urlsplit

import typer
from pydantic import Field

from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_fields, show_json, show_result
from cli.output.quantities import counted, moment
from cli.transactions.changes import Change, DryRunOption, YesOption
from protocol import __version__
from protocol.errors import InvalidInput, MusterError
from protocol.runtime.configuration_file import ConfigOption, placed, reads
from protocol.runtime.extras import DISTRIBUTION
from protocol.runtime.settings import Settings
from worker.control import DaemonControl
from worker.settings import WorkerSettings, default_state
from worker.situation import WorkerStatus
from worker.state import StateDirectory


class _StateSetting(Settings):
    """The only setting that these commands need, so that they work for a worker whose settings come from variables."""

    service: ClassVar[str] = WorkerSettings.service
    partial: ClassVar[bool] = True

    state: Path = Field(default_factory=default_state)


StateOption = Annotated[
    Path | None, typer.Option(help="The worker's state directory; by default the one in the settings.")
]

UNIT = Path(".config/systemd/user/muster-worker.service")
"""Systemd unit that `muster worker init` writes for a worker in the default folder, relative to the home folder.

A worker in another folder has a unit `muster-worker-NAME.service` beside it.
"""
_FOLLOW_SECONDS = 0.5
_SHA256 = re.compile("[0-9a-f]{64}")
_WHEEL_NAME = DISTRIBUTION.replace("-", "_")
_WHEEL = re.compile(rf"{_WHEEL_NAME}-[A-Za-z0-9_.+-]+\.whl")


@reads("worker")
@listing(watch=True)
def status(config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Show what the worker is doing, and why."""
    found = _control(config, state).status()
    if as_json:
        show_json(found)
        return
    show_fields(_fields(found))


@reads("worker")
def logs(
    config: ConfigOption = None,
    state: StateOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they arrive.")] = False,
    tail: Annotated[int, typer.Option(min=0, max=5000, help="Number of last lines to print.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the output of the task that runs here."""
    control = _control(config, state)
    page = control.logs(tail=tail)
    while True:
        for line in page.lines:
            if as_json:
                show_json(line, one_line=True)
                continue
            stamp = datetime.fromtimestamp(line.time_ms / 1000, UTC)
            say(f"{stamp:%H:%M:%S} {line.stream:<6} {_printable(line.text)}")
        if not follow:
            return
        if not page.lines:
            time.sleep(_FOLLOW_SECONDS)
        page = control.logs(since=page.next_sequence)


@reads("worker")
def drain(
    config: ConfigOption = None,
    state: StateOption = None,
    undo: Annotated[bool, typer.Option("--undo", help="Accept new tasks again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Finish the running task and accept no new task, until `--undo`, also after a restart."""
    _control(config, state).drain(on=not undo)
    text = "accepts new tasks again" if undo else "accepts no new task; `muster worker status` shows when it is done"
    show_result(text, {"draining": not undo}, as_json=as_json)


@reads("worker")
def resume(config: ConfigOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Lease slots again after leasing has stopped because work was not paid (see `status`)."""
    control = _control(config, state)
    was = control.status().stopped
    control.resume()
    again = "leases slots again; three more unpaid pieces of work in a row stop leasing again"
    show_result(again if was else "leasing had not stopped", {"leasing_had_stopped": bool(was)}, as_json=as_json)


@reads("worker")
def leave(
    config: ConfigOption = None,
    state: StateOption = None,
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stop the task, deliver queued files, leave the pool on the ledger and end the daemon.

    Leaving frees the stake that the membership locks.
    """
    control = _control(config, state)
    change = Change(
        as_json=as_json,
        question="leave the pool? The task stops, the daemon ends, and the node needs a new invite to join again.",
        confirmed=confirmed,
        dry_run=dry_run,
    )
    change.require_answer()
    found = control.status()
    queued = sum(found.queue.values())
    change.plan_request(
        f"stop {found.task or 'no task'}, deliver {counted(queued, 'queued file')}, leave pool {found.pool_id} with "
        f"{found.node} and end the daemon"
    )
    control.leave()
    note("leaving: stopping the task and delivering queued files")
    while True:
        try:
            control.status()
        except MusterError:
            break
        time.sleep(_FOLLOW_SECONDS)
    text = "the worker has ended; check with `muster node show` that the membership has ended too"
    show_result(text, {"node": found.node, "pool": found.pool_id, "ended": True}, as_json=as_json)


@reads("worker")
def retry(
    item: Annotated[str, typer.Argument(help="Id of a parked file, as `muster worker status` shows it.")],
    config: ConfigOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry a file that was parked because it could not be delivered."""
    _control(config, state).retry(item)
    show_result(f"delivery of {item} is retried", {"retried": item}, as_json=as_json)


def upgrade(
    release: Annotated[
        str | None,
        typer.Argument(help="The release's wheel: its https URL, or the path of a downloaded file.", metavar="[WHEEL]"),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="SHA-256 of the wheel, from the announcement of the release.", metavar="HEX")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print how to install a release, and what happens to the running task.

    A release is a wheel with a known SHA-256. Nothing is looked up in a package index by the name of this project.
    """
    units = sorted(path.stem for path in (Path.home() / UNIT).parent.glob("muster-worker*.service"))
    restart = f"systemctl --user restart {' '.join(units)}" if units else "systemctl restart muster-worker"
    steps = [*upgrade_commands(release, sha256), restart]
    if as_json:
        show_json({"version": __version__, "steps": steps})
        return
    say(f"this is muster {__version__}")
    for number, step in enumerate(steps, 1):
        say(f"{number}. {step}")
    say(
        "The restart sends SIGTERM, after which the worker stops the task and delivers its files. To keep the\n"
        "container running during the restart, use `kill -9` instead: the new worker finds it again."
    )


def upgrade_commands(release: str | None, sha256: str | None) -> list[str]:
    """Returns the commands that install a release into this environment.

    Args:
        release: URL or path of the release's wheel. None for an installation from a clone, which is updated with git.
        sha256: Expected SHA-256 of the wheel in hexadecimal.

    Raises:
        InvalidInput: The release can't be installed safely: no wheel or digest is given, the URL is not https, or the
            file's digest differs.
    """
    pip = f"{shlex.quote(sys.executable)} -m pip"
    if release is None:
        return [*_update_of_clone(pip), f"{pip} check"]
    digest = (sha256 or "").lower()
    if not _SHA256.fullmatch(digest):
        raise InvalidInput(
            "the SHA-256 of the release is missing" if sha256 is None else "--sha256 is not 64 hex digits",
            hint="give --sha256 with the digest that was announced with the release, not one from the same server",
        )
    url = urlsplit(release) if "://" in release else None
    if not _WHEEL.fullmatch(Path(release if url is None else url.path).name):
        raise InvalidInput(
            f"{release!r} is not a wheel of {DISTRIBUTION}", hint=f"a release is a file {_WHEEL_NAME}-VERSION-….whl"
        )
    if url is None:
        source = _verified_file(Path(release), digest).as_uri()
    elif url.scheme == "https" and not url.fragment and not url.username:
        source = release
    else:
        raise InvalidInput(f"{release!r} is not an https URL without user name and fragment", hint="use https://")
    requirement = shlex.quote(f"{DISTRIBUTION} @ {source}#sha256={digest}")
    lock = f'"$({shlex.quote(sys.executable)} -m muster_network files requirements.lock)"'
    return [
        f"{pip} install --no-deps --force-reinstall {requirement}    # pip refuses a file with another SHA-256",
        f"{pip} install --require-hashes --only-binary=:all: -r {lock}",
        f"{pip} check    # names packages that the release needs in another version, for example torch",
    ]


def _update_of_clone(pip: str) -> list[str]:
    """Returns the commands that update the clone from which this installation was made.

    pip records the source of an installation in `direct_url.json` (PEP 610).

    Raises:
        InvalidInput: This installation was not made from a clone.
    """
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    if "dir_info" not in origin:
        raise InvalidInput(
            "this installation was made from a release, so an upgrade needs another release",
            hint="name its wheel and digest: muster worker upgrade https://… --sha256 …; they are in the announcement",
        )
    folder = shlex.quote(unquote(urlsplit(str(origin["url"])).path))
    editable = " --editable" if origin["dir_info"].get("editable") else ""
    return [f"git -C {folder} pull --ff-only", f"{pip} install{editable} {folder}"]


def _verified_file(path: Path, digest: str) -> Path:
    """Returns the absolute path of a file whose SHA-256 is as expected."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise InvalidInput(
            f"{path} has the SHA-256 {found}, not {digest}", hint="do not install it; download the release again"
        )
    return path.resolve()


def _control(config: Path | None, state: Path | None) -> DaemonControl:
    """Returns the client of the daemon with the given state directory, or else with the one in the settings."""
    if state is None:
        state = _StateSetting.load(file=config).state
    return DaemonControl(StateDirectory(placed(state, Path.cwd())))


def _fields(found: WorkerStatus) -> list[tuple[str, object]]:
    """Returns the fields that have a value; several fields may have the same name, such as one for each file."""
    report = found.assignment
    queue = ", ".join(f"{count} {stage}" for stage, count in found.queue.items() if count) or "empty"
    stopped = f"no leasing: {found.stopped}. Ask the pool's owner; then run `muster worker resume`"
    fields: list[tuple[str, object]] = [
        ("node", found.node),
        ("pool", found.pool_id),
        ("phase", found.phase),
        ("draining", found.draining or None),
        ("stopped", found.stopped and stopped),
        ("detail", found.detail),
        ("orchestrator", found.orchestrator),
        ("node_state", found.node_state),
    ]
    if found.node_state:
        fields += [("last_answer", moment(found.last_answer_ms)), ("interval", timedelta(seconds=found.interval_s))]
    fields += [("unreachable", found.silent_because), ("search", found.search), ("moved", found.moved)]
    if report is not None:
        fields += [("task", found.task), ("task_state", report.state), ("restarts", report.restarts)]
        fields.append(("task_detail", report.detail))
    fields.append(("refused", found.refused))
    fields += [("discovery", f"{url}: {state}") for url, state in found.discovery.items()]
    fields += [("runtime", found.runtime), ("runtime_error", found.runtime_error), ("queue", queue)]
    for name, texts in (
        ("parked", found.parked),
        ("given_up", found.given_up),
        ("notice", found.notices),
        ("warning", found.warnings),
    ):
        fields += [(name, text) for text in texts]
    if abs(found.clock_skew_s) >= 1:
        fields.append(("clock", f"{found.clock_skew_s:+.1f} s compared with the orchestrator's"))
    return [(name, value) for name, value in fields if value not in {None, ""}]


def _printable(text: str) -> str:
    """Replaces control characters, so that untrusted text can't control the terminal."""
    return "".join(character if character.isprintable() or character == "\t" else "�" for character in text)
