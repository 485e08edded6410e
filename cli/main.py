"""`muster`: one command for contributors, pool owners, validators and operators.

`cli.exit_codes` has the exit codes.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cli import COMPLETION_VARIABLE
from cli.configuration.command_tables import configure
from cli.exit_codes import EXIT_CODES, FAILED, INTERRUPTED, exit_code_of
from cli.groups import CommandGroup
from cli.lazy import Parts, mount
from cli.output.documents import first_fault
from cli.output.printing import JsonOption, note, say, show_error, show_json, show_result
from protocol import __version__
from protocol.errors import InvalidInput, MusterError
from protocol.runtime.configuration_file import use_configuration_file
from protocol.runtime.extras import missing_extra
from protocol.runtime.logs import configure_logs, get_logger, logs_json_only
from protocol.runtime.shipped import shipped, shipped_files

_log = get_logger(__name__)


PARTS: Parts = {
    "devnet": (
        "cli.devnet.command",
        "Run a whole network on this machine until its policy has learned; Ctrl-C stops everything.",
    ),
    "worker": ("cli.worker.commands", "Contribute this machine to a pool."),
    "pool": ("cli.pool.commands", "Create and operate a pool."),
    "validator": ("cli.validator.commands", "Run and operate a pool's validator."),
    "trainer": ("cli.trainer.commands", "Warm up, train and evaluate models."),
    "shardcast": ("cli.shardcast.commands", "Publish, relay and fetch checkpoints."),
    "rollouts": ("cli.rollouts.commands", "Show and verify rollout files."),
    "serve": ("cli.serve", "Serve a model through OpenAI's API until SIGTERM or SIGINT."),
    "env": ("cli.environments.commands", "Environments: families of tasks with checkable answers."),
    "recipe": ("cli.environments.recipe", "Recipes: how rollouts of a model are generated."),
    "keys": ("cli.keys", "Make, import and show keys."),
    "stake": ("cli.ledger.stake", "Add, show, unbond and withdraw stake."),
    "node": ("cli.ledger.node", "Register machines, redeem invites, leave pools."),
    "work": ("cli.ledger.work", "Leases, submissions, verdicts, disputes and rewards by hand."),
    "orchestrator": ("orchestrator.cli", "Run a pool's orchestrator."),
    "discovery": ("discovery.cli", "Run a discovery service."),
    "gateway": ("cli.gateway.commands", "Offer a pool's workers to OpenAI clients."),
    "ledger": ("cli.ledger.commands", "Deploy, show and govern the contracts."),
    "admin": ("cli.admin.commands", "Back up and restore a pool's state."),
    "token": ("cli.token", "Bearer tokens for a pool's REST API."),
    "config": ("cli.configuration.commands", "Show which configuration is in force, and where each value comes from."),
    "settings": ("cli.configuration.settings", "List every setting of a service, or of a table that commands read."),
}

_EPILOG = "\n\n".join(["Exit codes:", *(f"{code}: {text}" for code, text in EXIT_CODES.items())])

app = CommandGroup(
    name="muster",
    epilog=_EPILOG,
    help="Muster: train a language model on a network of independent machines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"muster {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file.", envvar="MUSTER_CONFIG", show_envvar=True)
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Sets the configuration file that the command reads."""
    configure_logs(level=os.environ.get("MUSTER_LOG", "WARNING"))
    use_configuration_file(context, config)


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version."""
    show_result(f"muster {__version__}", {"version": __version__}, as_json=as_json)


@app.command()
def files(
    name: Annotated[
        str | None, typer.Argument(help="Name of a file or folder, such as deploy/systemd; default: list all files.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print where the release's locks, systemd units, image recipes and proxy rules are on this machine."""
    if name is not None:
        show_result(str(shipped(name)), {"path": str(shipped(name))}, as_json=as_json)
        return
    found = list(shipped_files())
    if as_json:
        show_json(found)
        return
    for each in found:
        say(each)


def main() -> None:
    """Runs the command line; errors end in a message and an exit code, never in a traceback."""
    if sys.stdout is None:  # the caller closed standard output
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends
    try:
        mount(app, PARTS, sys.argv[1:], every=COMPLETION_VARIABLE in os.environ)
        configure(app)
        gc.freeze()  # a service's collections skip what was imported
        gc.enable()
        app()
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:  # noqa: BLE001 - every error ends in a message
        sys.exit(_end_with(error))


def _end_with(error: BaseException) -> int:
    """Prints the error that ended the command, and returns the exit code."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]  # commands with concurrent tasks raise an exception group
    _show_traceback(error)
    match error:
        case MusterError():
            show_error(error)
            return exit_code_of(error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():  # the program that reads the output closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit can't fail then
        case OSError():
            show_error(_of_the_machine(error))
        case ValidationError():
            show_error(InvalidInput(first_fault(error)))
        case ModuleNotFoundError() if (missing := missing_extra(error)) is not None:
            show_error(missing)
        case _:
            show_error(
                MusterError(
                    f"{type(error).__name__}: {error}",
                    hint="this is a bug in Muster; MUSTER_DEBUG=1 prints the traceback",
                )
            )
            if not logs_json_only():
                note("please report it with the command you ran")
    return FAILED


def _show_traceback(error: BaseException) -> None:
    """Shows the traceback of an error: in a service's log if the error is unexpected, else with `MUSTER_DEBUG`."""
    if not logs_json_only():
        if os.environ.get("MUSTER_DEBUG"):
            traceback.print_exception(error)
    elif not isinstance(error, (MusterError, KeyboardInterrupt)):
        _log.error("traceback", exc_info=error)


_MACHINE_HINTS = {
    errno.ENOSPC: "make room on that disk and try again",
    errno.EDQUOT: "make room on that disk and try again",
    errno.EROFS: "that disk is read-only: choose another path",
    errno.EACCES: "check the permissions there, or choose another path",
    errno.EPERM: "check the permissions there, or choose another path",
    errno.ENOENT: "check the path, and that its folder exists",
}


def _of_the_machine(error: OSError) -> MusterError:
    """Converts a disk or file error; the message has the path if the operating system names one."""
    about = f"{error.filename}: " if error.filename else ""
    return MusterError(
        f"{about}{error.strerror or error}",
        hint=_MACHINE_HINTS.get(error.errno or 0, "the operating system refused this"),
    )


if __name__ == "__main__":
    main()
