"""`muster worker rewards`: shows the earnings of a provider's nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.connection import PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.listing import listing
from cli.output import JsonOption, show_fields
from cli.values import Must
from ledger.client.work import WorkStatus
from ledger.events.types import WorkSubmitted
from protocol.verdicts import Outcome

ProviderOption = Annotated[str, typer.Option(help="Address or key name of the provider.")]


@listing(watch=True)
async def rewards(
    context: typer.Context, provider: ProviderOption = "provider", pool: PoolOption = None, as_json: JsonOption = False
) -> None:
    """Show the earnings of your nodes: claimable now, and from work that is not final yet."""
    async with open_ledger(context.obj) as ledger:
        address, pool_id = resolve_address(context.obj, provider), chosen_pool(context.obj, pool)
        accrued = await ledger.work.accrued(pool_id, address)
        undecided = provisional = 0
        for each in await ledger.history(WorkSubmitted, pool_id=pool_id):
            found = await ledger.work.get(each.key)
            if found is None or found.provider != address:
                continue
            if found.status is WorkStatus.SUBMITTED:
                undecided += found.reward
            elif found.status is WorkStatus.PROVISIONAL and found.outcome is Outcome.ACCEPTED:
                provisional += found.reward
    amounts = {"claimable": accrued, "accepted_not_final": provisional, "not_judged": undecided}
    show_fields({"provider": address, **{name: Must(amount) for name, amount in amounts.items()}}, as_json=as_json)
