"""`muster worker`: the daemon's own commands, and beside them what a contributor needs of keys, stake and rewards."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import keys, stake, work
from cli.connection import PoolOption, chosen_pool, open_ledger, run
from cli.keys import resolve_address
from cli.output import JsonOption, show_fields, show_table
from ledger.amounts import format_amount
from ledger.client.work import Work, WorkStatus
from ledger.events import WorkSubmitted
from protocol.verdicts import Outcome, ReasonCode
from worker.cli import app

NodeOption = Annotated[str, typer.Option(help="Address or key name of the node.")]
ProviderOption = Annotated[str, typer.Option(help="Address or key name of the provider.")]

app.add_typer(keys.app, name="keys")
app.add_typer(stake.app, name="stake")
app.command(name="dispute")(work.dispute)
app.command(name="claim")(work.claim)


@app.command()
def verdicts(
    context: typer.Context, node: NodeOption = "node", pool: PoolOption = None, as_json: JsonOption = False
) -> None:
    """Show every verdict on your node's work, with its reason and until when it can be disputed."""

    async def command() -> None:
        rows = []
        async with open_ledger(context.obj) as ledger:
            of = resolve_address(context.obj, node)
            for each in await ledger.history(WorkSubmitted, pool_id=chosen_pool(context.obj, pool)):
                found = await ledger.work.get(each.key) if each.node == of else None
                if found is not None:
                    verdict = found.outcome.name.lower() if found.outcome else "none yet"
                    until = found.deadline if found.status is WorkStatus.PROVISIONAL else None
                    status = found.status.name.lower()
                    rows.append((each.key, each.step, each.index, status, verdict, _reason(found), until))
        columns = ("key", "step", "index", "status", "verdict", "reason", "disputable_until")
        show_table(columns, rows, as_json=as_json, empty="this node has submitted no work yet")

    run(command())


@app.command()
def rewards(
    context: typer.Context, provider: ProviderOption = "provider", pool: PoolOption = None, as_json: JsonOption = False
) -> None:
    """Show what your nodes have earned: claimable now, and still on its way."""

    async def command() -> None:
        async with open_ledger(context.obj) as ledger:
            whose, pool_id = resolve_address(context.obj, provider), chosen_pool(context.obj, pool)
            accrued = await ledger.work.accrued(pool_id, whose)
            undecided = provisional = 0
            for each in await ledger.history(WorkSubmitted, pool_id=pool_id):
                found = await ledger.work.get(each.key)
                if found is None or found.provider != whose:
                    continue
                if found.status is WorkStatus.SUBMITTED:
                    undecided += found.reward
                elif found.status is WorkStatus.PROVISIONAL and found.outcome is Outcome.ACCEPTED:
                    provisional += found.reward
        show = str if as_json else (lambda amount: f"{format_amount(amount)} MUST")
        amounts = {"claimable": accrued, "accepted_not_final": provisional, "not_judged": undecided}
        show_fields({"provider": whose, **{name: show(amount) for name, amount in amounts.items()}}, as_json=as_json)

    run(command())


def _reason(found: Work) -> str:
    try:
        return ReasonCode(found.reason).name.lower().replace("_", "-")
    except ValueError:
        return str(found.reason)


__all__ = ["app"]
