"""`muster pool ban-provider` and `unban-provider`: ban a provider with all its nodes, and lift the ban."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli.connection import ManagerKey, PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.output import JsonOption, note, say, show_json
from cli.pool.bans import BanReason, check_ban_reason
from ledger.errors import TransactionReverted
from protocol.errors import Conflict, InvalidInput

ProviderName = Annotated[str, typer.Argument(metavar="ADDRESS", help="Address or key name of the provider.")]
Confirmed = Annotated[bool, typer.Option("--yes", help="Act without asking for confirmation.")]


async def ban_provider(
    context: typer.Context,
    name: ProviderName,
    *,
    reason: BanReason,
    confirmed: Confirmed = False,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
    as_json: JsonOption = False,
) -> None:
    """Ban a provider: none of its nodes may join the pool or submit work, until `unban-provider`.

    The nodes can still use leases that expire within the pool's notice period; that work is judged and paid.
    """
    reason = check_ban_reason(reason)
    pool_id, provider = chosen_pool(context.obj, pool), resolve_address(context.obj, name)
    _confirm(f"ban {provider} and all its nodes from pool {pool_id}?", confirmed=confirmed)
    async with open_ledger(context.obj, key) as ledger:
        try:
            receipt = await ledger.pools.ban_provider(pool_id, provider, reason)
        except TransactionReverted as error:
            if error.name != "BanUnchanged":
                raise
            raise Conflict(f"{provider} is already banned from pool {pool_id}") from error
    if as_json:
        show_json({"pool": pool_id, "provider": provider, "banned": True, "transaction": receipt.transaction})
        return
    say(f"{provider} is banned from pool {pool_id} with all its nodes")
    note("`muster pool unban-provider` lifts the ban")


async def unban_provider(
    context: typer.Context,
    name: ProviderName,
    *,
    confirmed: Confirmed = False,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
    as_json: JsonOption = False,
) -> None:
    """Lift a provider's ban. A node that was also banned by `muster pool ban` stays banned."""
    pool_id, provider = chosen_pool(context.obj, pool), resolve_address(context.obj, name)
    _confirm(f"lift the ban of {provider} from pool {pool_id}?", confirmed=confirmed)
    async with open_ledger(context.obj, key) as ledger:
        try:
            receipt = await ledger.pools.unban_provider(pool_id, provider)
        except TransactionReverted as error:
            if error.name != "BanUnchanged":
                raise
            raise Conflict(f"{provider} is not banned from pool {pool_id}") from error
    if as_json:
        show_json({"pool": pool_id, "provider": provider, "banned": False, "transaction": receipt.transaction})
        return
    say(f"the nodes of {provider} may join pool {pool_id} and submit work again")


def _confirm(question: str, *, confirmed: bool) -> None:
    """Asks at the terminal for confirmation, unless the user gave `--yes`.

    Raises:
        InvalidInput: There is no terminal, and no `--yes`.
        typer.Abort: The answer is no.
    """
    if confirmed:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("this command asks for confirmation, and there is no terminal", hint="give --yes")
    typer.confirm(question, abort=True, err=True)
