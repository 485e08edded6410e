"""`muster pool ban-provider` and `unban-provider`: ban a provider with all its nodes, and lift the ban."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.connection import ManagerKey, PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.output.printing import JsonOption, note
from cli.pool.bans import BanReason, check_ban_reason
from cli.transactions.changes import Change, DryRunOption, YesOption
from ledger.errors import TransactionReverted
from protocol.errors import Conflict

ProviderName = Annotated[str, typer.Argument(metavar="ADDRESS", help="Address or key name of the provider.")]


async def ban_provider(
    context: typer.Context,
    name: ProviderName,
    *,
    reason: BanReason,
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
    as_json: JsonOption = False,
) -> None:
    """Ban a provider: none of its nodes may join the pool or submit work, until `unban-provider`.

    The nodes can still use leases that expire within the pool's notice period; that work is judged and paid.
    """
    reason = check_ban_reason(reason)
    pool_id, provider = chosen_pool(context.obj, pool), resolve_address(context.obj, name)
    question = f"ban {provider} and all its nodes from pool {pool_id}?"
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        try:
            await ledger.pools.ban_provider(pool_id, provider, reason)
        except TransactionReverted as error:
            if error.name != "BanUnchanged":
                raise
            raise Conflict(f"{provider} is already banned from pool {pool_id}") from error
    text = f"{provider} is banned from pool {pool_id} with all its nodes"
    change.show(text, pool=pool_id, provider=provider, banned=True)
    if not as_json:
        note("`muster pool unban-provider` lifts the ban")


async def unban_provider(
    context: typer.Context,
    name: ProviderName,
    *,
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
    as_json: JsonOption = False,
) -> None:
    """Lift a provider's ban. A node that was also banned by `muster pool ban` stays banned."""
    pool_id, provider = chosen_pool(context.obj, pool), resolve_address(context.obj, name)
    question = f"lift the ban of {provider} from pool {pool_id}?"
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        try:
            await ledger.pools.unban_provider(pool_id, provider)
        except TransactionReverted as error:
            if error.name != "BanUnchanged":
                raise
            raise Conflict(f"{provider} is not banned from pool {pool_id}") from error
    text = f"the nodes of {provider} may join pool {pool_id} and submit work again"
    change.show(text, pool=pool_id, provider=provider, banned=False)
