"""`muster pool download`: downloads a submitted file and prints the parts of its slot's seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.configuration.sections import Configuration
from cli.connection import chosen_pool, open_ledger
from cli.output.printing import JsonOption, show_fields
from cli.output.progress import working
from cli.pool.connection import Manager, Where, open_orchestrator
from ledger.client import Ledger
from ledger.events.types import WorkSubmitted
from protocol.clients import OrchestratorClient
from protocol.errors import InvalidInput, NotFound
from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import Digest
from protocol.runtime.clock import SystemClock
from protocol.wire.listings import RolloutItem

_MOST_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A downloaded file, its work, and the parts of its slot's seed for `muster rollouts verify`."""

    file: Path
    work: Digest
    node: str
    step: int
    slot: int
    units: int
    version: Digest
    number: int
    """The version's number on the ledger."""
    chain_id: int
    pool: int
    beacon: Digest | None
    """Hash of the lease's beacon block; None if the chain has no event of this submission."""
    salt: Digest | None
    """Salt of the lease; None if the chain has no event of this submission."""


async def download(
    context: typer.Context,
    work: Annotated[str, typer.Argument(help="Key of the work, or a prefix; `muster pool rollouts` lists keys.")],
    *,
    to: Annotated[Path, typer.Option(help="Folder for the file.")] = Path(),
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Download a submitted file, check its hash, and print the parts of its slot's seed.

    The file's SHA-256 must equal the one on the ledger.
    """
    if not to.is_dir():
        raise InvalidInput(f"{to} is no folder", hint="create it first")
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        item = await _find(client, work)
        found = await _download(context.obj, client, item, to)
    fields = asdict(found)
    if not as_json:
        fields["version"] = f"version {fields.pop('number')} ({found.version})"
    show_fields(fields, as_json=as_json)


async def _find(client: OrchestratorClient, beginning: str) -> RolloutItem:
    """Returns the work whose key equals `beginning` or begins with it.

    Raises:
        NotFound: No work has such a key.
        InvalidInput: Several keys begin with `beginning`.
    """
    fitting = [item async for item in client.rollouts(status="all") if item.key.startswith(beginning)]
    if not fitting:
        raise NotFound(f"no work's key begins with {beginning[:80]}", hint="`muster pool rollouts` lists the keys")
    if len(fitting) > 1:
        raise InvalidInput(
            f"the keys of {len(fitting)} works begin with {beginning}", hint="give more characters of the key"
        )
    return fitting[0]


async def _download(
    configuration: Configuration, client: OrchestratorClient, item: RolloutItem, folder: Path
) -> Downloaded:
    if item.file_url is None:
        raise NotFound(f"the file of {item.key} is not in the store", hint="the orchestrator may have removed it")
    pool = chosen_pool(configuration, None)
    path = folder / f"{item.node}-{item.step}-{item.index}.parquet"
    transfer = ObjectTransfer(client.location.url, clock=SystemClock())
    try:
        with working(f"downloading {path.name}"):
            await transfer.fetch(item.file_url, path, sha256=item.sha256, most_bytes=_MOST_BYTES)
    finally:
        await transfer.aclose()
    async with open_ledger(configuration) as ledger:
        submitted = await _submitted(ledger, pool, item)
        return Downloaded(
            file=path,
            work=item.key,
            node=item.node,
            step=item.step,
            slot=item.index,
            units=item.units,
            version=item.digest,
            number=item.version,
            chain_id=ledger.deployment.chain_id,
            pool=pool,
            beacon=None if submitted is None else await ledger.block_hash(submitted.beacon_block),
            salt=None if submitted is None else submitted.salt,
        )


async def _submitted(ledger: Ledger, pool: int, item: RolloutItem) -> WorkSubmitted | None:
    """Returns the newest event of this submission; a reorg may have replaced earlier events."""
    found = await ledger.history(
        WorkSubmitted, pool_id=pool, second=item.node, third=item.key, since=item.submitted_block
    )
    return found[-1] if found else None
