"""`python -m cli.devnet.attacks`: `list` shows all attacks, `run` runs a worker with one of them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.devnet.attacks.registry import ATTACKS, find_attack
from cli.devnet.attacks.worker import run_cheat
from cli.output.printing import JsonOption, show_error, show_table
from cli.output.tables import Column, Columns
from protocol.errors import MusterError
from protocol.runtime.logs import configure_logs
from worker.settings import WorkerSettings

app = typer.Typer(no_args_is_help=True, help="Run nodes that cheat, and list the attacks.")


ATTACK_COSTS = Columns.of(
    "name",
    Column("does", least=16),
    Column("end", least=8),
    Column("by", drop=1, least=16),
    Column("costs_it", drop=2, least=12),
    Column("costs_others", drop=3, least=12),
)


@app.command(name="list")
def list_cheats(as_json: JsonOption = False) -> None:
    """List every attack: its outcome, the defence against it, and its costs for the node and for others."""
    rows = [(each.name, each.action, each.end.value, each.defence, each.cost, each.harm) for each in ATTACKS.values()]
    show_table(ATTACK_COSTS, rows, as_json=as_json, empty="no attacks")


@app.command()
def run(
    cheat: Annotated[str, typer.Option(help="Name of the attack; `list` shows all.")],
    config: Annotated[Path | None, typer.Option(help="TOML file with \\[worker], as for an honest worker.")] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> None:
    """Run a worker that cheats, until SIGTERM or SIGINT. Tasks run in the process sandbox."""
    configure_logs(level=log_level, service=True)
    asyncio.run(run_cheat(find_attack(cheat), WorkerSettings.load(file=config)))


def main() -> None:
    """Runs the command line."""
    try:
        app()
    except MusterError as error:
        show_error(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
