"""`muster pool url`: puts the pool's URL on the ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.connection import OwnerKey, PoolOption, chosen_pool, open_ledger
from cli.output.printing import JsonOption
from cli.pool.joining import ask_pool
from cli.transactions.changes import Change, DryRunOption
from protocol.errors import Conflict


async def url(
    context: typer.Context,
    address: Annotated[str, typer.Argument(metavar="URL", help="Public URL of the pool's orchestrator.")],
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put the pool's URL on the ledger, where contributors find it.

    `muster pool list` shows it, and `muster worker init` reads it. The command first checks that the pool's
    orchestrator answers at the URL.
    """
    pool_id = chosen_pool(context.obj, pool)
    found = await ask_pool(address, allow_plain_http=False)
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        signer = found.orchestrator
        if found.pool_id != pool_id or signer is None or not await ledger.pools.is_orchestrator(pool_id, signer):
            raise Conflict(
                f"{address} is served by {signer} for pool {found.pool_id}, not by the orchestrator of pool {pool_id}",
                hint="check the URL and --pool; `muster pool roles` shows the orchestrator's key",
            )
        await ledger.pools.set_data_uri(pool_id, str(found.url))
    change.show(f"pool {pool_id} has the URL {found.url} on the ledger", pool=pool_id, url=str(found.url))
