"""`muster admin`: backs up, restores and checks a pool's state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.admin.archive import About, Part, ServiceName
from cli.groups import CommandGroup
from cli.output.printing import JsonOption, note, say, show_json, show_table
from cli.output.progress import working
from cli.output.tables import Column, Columns
from cli.output.values import Size
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.findings import exit_code

app = CommandGroup(name="admin", no_args_is_help=True, help="Back up and restore a pool's state.")

PART_COLUMNS = Columns.of("part", "files", "bytes", Column("sha256", drop=1))
FINDINGS = Columns.of("service", "check", "level", Column("bytes", drop=1), "found", "advice")

Services = Annotated[
    list[ServiceName] | None,
    typer.Option("--service", help="A service; repeatable. Default: all whose pool_id this machine's settings have."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="File with the passphrase of the encrypted backup. Default: not encrypted."),
]


@app.command()
@reads("orchestrator", "gateway", "validator", "trainer")
async def backup(
    to: Annotated[
        Path,
        typer.Argument(metavar="TO", help="New file, folder for a file with the time in its name, or - for a pipe."),
    ],
    *,
    service: Services = None,
    passphrase_file: PassphraseFile = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the state of a pool's services into one file, also while they work.

    The file has secrets, so it gets mode 0600. It has the services' data in Redis, the key that encrypts secrets of
    tasks, the pool's files unless they are in a bucket, and the trainer's state and journal. It has no keystores.
    """
    from cli.admin.backup import STANDARD_OUTPUT, make_backup  # noqa: PLC0415 - `--help` does not need the services
    from cli.admin.encryption import passphrase_in  # noqa: PLC0415
    from cli.admin.services import configured  # noqa: PLC0415

    pool = configured(config, wanted=service or ())
    passphrase = passphrase_in(passphrase_file)
    with working("making a backup"):
        made = await make_backup(pool, to, passphrase=passphrase)
    if made.path == STANDARD_OUTPUT:
        note(f"the backup of {_names(made.about)} is complete")
        return
    _show(made.about, made.parts, as_json=as_json, file=made.path, left_out=pool.left_out)
    if not as_json:
        say(f"{made.path} holds the backup of {_names(made.about)}")
        if passphrase is None:
            note("it has secrets and is not encrypted: keep it where only you can read it")


@app.command()
@reads("orchestrator", "gateway", "validator", "trainer")
async def restore(
    file: Annotated[Path, typer.Argument(help="File of a backup.")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the data that exist; they are lost.")] = False,
    service: Services = None,
    passphrase_file: PassphraseFile = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore the state of a pool's services, which must be stopped.

    The whole file is verified before anything is written. A service does not start while its data are incomplete; after
    an interruption, run the same command again.
    """
    from cli.admin.encryption import passphrase_in  # noqa: PLC0415 - `--help` does not need the services
    from cli.admin.restore import restore as restore_from  # noqa: PLC0415
    from cli.admin.services import configured  # noqa: PLC0415
    from cli.admin.verify import opened  # noqa: PLC0415

    passphrase = passphrase_in(passphrase_file)
    with opened(file) as source, working("restoring a backup"):
        pool = configured(config, wanted=service or ())
        done = await restore_from(source, pool, passphrase=passphrase, replace=replace, only=service or ())
    _show(done.about, done.parts, as_json=as_json, file=file)
    if not as_json:
        names = ", ".join(service or ()) or _names(done.about)
        say(f"restored {names} as of {done.about.created:%Y-%m-%d %H:%M:%S} UTC")


@app.command()
@reads("orchestrator", "gateway", "validator", "trainer")
async def check(
    file: Annotated[
        Path | None, typer.Argument(help="File of a backup. Default: check what a backup on this machine needs.")
    ] = None,
    *,
    to: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of backups, whose free space is checked.")
    ] = Path(),
    service: Services = None,
    passphrase_file: PassphraseFile = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a backup, or check that this machine can make one; write nothing.

    A backup is verified without settings, on any machine.
    """
    if file is None:
        await _check_machine(config, to, service or (), as_json=as_json)
        return
    from cli.admin.encryption import passphrase_in  # noqa: PLC0415 - `--help` does not need the services
    from cli.admin.verify import opened, verify  # noqa: PLC0415

    passphrase = passphrase_in(passphrase_file)
    with opened(file) as source, working("verifying a backup"):
        found = verify(source, passphrase)
    _show(found.about, found.parts, as_json=as_json, file=file)
    if not as_json:
        made = f"made by release {found.about.release} at {found.about.created:%Y-%m-%d %H:%M:%S} UTC"
        say(f"{file} is complete: {_names(found.about)} of {found.about.pool}, {made}")


async def _check_machine(config: Path | None, to: Path, wanted: Sequence[ServiceName], *, as_json: bool) -> None:
    from cli.admin.findings import findings  # noqa: PLC0415
    from cli.admin.services import configured  # noqa: PLC0415

    pool = configured(config, wanted=wanted)
    found = await findings(pool, to)
    rows = [
        [service, one.check, one.level, None if size is None else Size(size), one.found, one.advice]
        for service, one, size in found
    ]
    show_table(FINDINGS, rows, as_json=as_json)
    if not as_json:
        _note_left_out(pool.left_out)
    raise typer.Exit(exit_code(finding for _, finding, _ in found))


def _show(
    about: About, parts: Sequence[Part], *, as_json: bool, file: Path, left_out: Sequence[str] | None = None
) -> None:
    if as_json:
        more = {} if left_out is None else {"left_out": list(left_out)}
        show_json({"file": str(file), "about": about, "parts": list(parts), **more})
        return
    show_table(PART_COLUMNS, [[one.name, one.files, Size(one.bytes), one.sha256] for one in parts])
    _note_left_out(left_out or ())
    for one in about.services:
        if one.bucket is not None:
            note(f"files in the bucket {one.bucket} are not in the backup")


def _note_left_out(names: Sequence[str]) -> None:
    if names:
        note(f"not configured here, so not in the backup: {', '.join(names)}")


def _names(about: About) -> str:
    return ", ".join(one.name for one in about.services)
