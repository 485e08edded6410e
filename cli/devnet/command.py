"""`muster devnet`: a whole network on this machine."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from cli.devnet.network import DevnetOptions, FirstTask, run_devnet
from cli.devnet.view import make_view
from ledger.chain import ChainKind
from protocol.wire.nodes import RuntimeKind


def devnet(
    directory: Annotated[Path, typer.Option(help="Where its state, keys and logs go.")] = Path(".devnet"),
    chain: Annotated[ChainKind, typer.Option(help="Which chain: pip's own, or anvil.")] = ChainKind.EMBEDDED,
    block_time: Annotated[float, typer.Option(min=0.05, max=60, help="Seconds between blocks.")] = 0.5,
    workers: Annotated[int, typer.Option(min=0, max=50, help="Workers to run.")] = 2,
    runtime: Annotated[
        RuntimeKind | None, typer.Option(help="What tasks run in; default: Docker where an engine answers.")
    ] = None,
    task: Annotated[FirstTask, typer.Option(help="What the workers do.")] = FirstTask.ROLLOUTS,
    ledger_only: Annotated[
        bool, typer.Option("--ledger-only", help="Chain, contracts and a pool; no services and no workers.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Go on with what the last devnet here left.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Start everything, see that it works, stop.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live view.")] = False,
) -> None:
    """Run a whole network on this machine; Ctrl-C stops all of it."""
    options = DevnetOptions(
        directory=directory,
        chain=chain,
        block_time=timedelta(seconds=block_time),
        workers=workers,
        task=task,
        runtime=runtime,
        keep=keep,
        ledger_only=ledger_only,
        only_check=check,
    )
    with make_view(plain=plain or check) as view:
        asyncio.run(run_devnet(options, view))
