"""`muster pool download`: a submitted file, and what its slot's seed stands on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.configuration import Configuration
from cli.connection import open_ledger, run
from cli.output import JsonOption, show_fields
from cli.pool_connection import Manager, Where, open_orchestrator
from protocol.clients import OrchestratorClient
from protocol.clock import SystemClock
from protocol.errors import InvalidInput, NotFound
from protocol.identifiers import Digest
from protocol.objects import ObjectTransfer
from protocol.wire.listings import RolloutItem

app = typer.Typer()

_MOST_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What there is now."""

    file: Path
    work: Digest
    node: str
    step: int
    slot: int
    units: int
    version: Digest
    beacon: Digest | None
    """None if the slot's block is forgotten."""


@app.command()
def download(
    context: typer.Context,
    work: Annotated[str, typer.Argument(help="Key of the work, or its beginning; `muster pool rollouts` lists them.")],
    *,
    to: Annotated[Path, typer.Option(help="Folder that the file goes into.")] = Path(),
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Download a submitted file, checked against the hash on the ledger, and say what its slot's seed stands on."""
    if not to.is_dir():
        raise InvalidInput(f"{to} is no folder", hint="make it first")

    async def command() -> None:
        async with open_orchestrator(context.obj, where=where, manager=manager) as client:
            item = await _find(client, work)
            found = await _download(context.obj, client, item, to)
        show_fields(asdict(found), as_json=as_json)

    run(command())


async def _find(client: OrchestratorClient, beginning: str) -> RolloutItem:
    """The work whose key begins so.

    Raises:
        NotFound: None does.
        InvalidInput: Several do.
    """
    fitting = [item async for item in client.rollouts(status="all") if item.key.startswith(beginning)]
    if not fitting:
        raise NotFound(f"no work's key begins with {beginning[:80]}", hint="`muster pool rollouts` lists them")
    if len(fitting) > 1:
        raise InvalidInput(f"the keys of {len(fitting)} works begin with {beginning}", hint="give more of it")
    return fitting[0]


async def _download(
    configuration: Configuration, client: OrchestratorClient, item: RolloutItem, folder: Path
) -> Downloaded:
    if item.file_url is None:
        raise NotFound(f"the file of {item.key} is not in the store", hint="it may have been removed since")
    path = folder / f"{item.node}-{item.step}-{item.index}.parquet"
    transfer = ObjectTransfer(client.location.url, clock=SystemClock())
    try:
        await transfer.fetch(item.file_url, path, sha256=item.sha256, most_bytes=_MOST_BYTES)
    finally:
        await transfer.aclose()
    beacon = None
    if item.beacon_block is not None:
        async with open_ledger(configuration) as ledger:
            beacon = await ledger.block_hash(item.beacon_block)
    return Downloaded(path, item.key, item.node, item.step, item.index, item.units, item.digest, beacon)
