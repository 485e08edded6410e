"""`muster stake`: deposits, unbonds and withdraws a provider's stake."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from cli.connection import ProviderKey, open_ledger
from cli.groups import CommandGroup
from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_fields, show_table
from cli.output.tables import Column, Columns
from cli.output.values import Must
from cli.transactions.changes import Change, DryRunOption
from ledger.amounts import format_amount, parse_amount

app = CommandGroup(no_args_is_help=True, help="Add, show, unbond and withdraw stake.")

UNBONDS = Columns.of("id", "amount", "matures_at", Column("can_be_withdrawn", drop=1))

Amount = Annotated[str, typer.Argument(help="Amount in MUST, for example 12.5.")]


@app.command()
async def add(
    context: typer.Context,
    amount: Amount,
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add to your stake."""
    change, added = Change(as_json=as_json, dry_run=dry_run), parse_amount(amount)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.stake.add(added)
        stake = await ledger.stake.of(ledger.address)
    text = f"staked {amount} MUST; active stake is {format_amount(stake.active)} MUST"
    change.show(text, added=Must(added), active=Must(stake.active))


@app.command()
async def unbond(
    context: typer.Context,
    amount: Amount,
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Unbond stake. The stake stays slashable until it matures; then `withdraw` pays it out."""
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.stake.unbond(parse_amount(amount))
        entry = (await ledger.stake.unbonds_of(ledger.address))[-1]
    text = f"{format_amount(entry.amount)} MUST can be withdrawn from {entry.matures_at:%Y-%m-%d %H:%M:%S} UTC on"
    change.show(text, id=entry.id, amount=Must(entry.amount), matures_at=entry.matures_at)


@app.command()
async def cancel(
    context: typer.Context,
    unbond_id: Annotated[int, typer.Argument(min=0, help="Id from `muster stake status`.")],
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cancel an unbonding, so that the stake is active again."""
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.stake.cancel_unbond(unbond_id)
    change.show(f"unbond {unbond_id} is cancelled; its stake is active again", id=unbond_id)


@app.command()
async def withdraw(
    context: typer.Context,
    to: Annotated[str | None, typer.Option(help="Address or key name of the receiver; default: the provider.")] = None,
    key: ProviderKey = "provider",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Withdraw matured stake."""
    receiver = None if to is None else resolve_address(context.obj, to)
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        receiver = receiver or ledger.address
        amount = await ledger.stake.withdraw(receiver)
        left = await ledger.stake.unbonds_of(ledger.address)
    change.show(f"withdrew {format_amount(amount)} MUST", amount=Must(amount), receiver=receiver, maturing=len(left))
    if left:
        note(f"{len(left)} more unbondings will mature, the next at {left[0].matures_at:%Y-%m-%d %H:%M:%S} UTC")


@app.command()
@listing(watch=True)
async def status(
    context: typer.Context,
    provider: Annotated[str, typer.Argument(help="Address or key name of the provider.")] = "provider",
    as_json: JsonOption = False,
) -> None:
    """Show a provider's stake and its unbondings."""
    address = resolve_address(context.obj, provider)
    async with open_ledger(context.obj) as ledger:
        stake = await ledger.stake.of(address)
        unbonds = await ledger.stake.unbonds_of(address)
        balance = await ledger.token.balance_of(address)
    amounts = {
        "balance": balance,
        "active": stake.active,
        "bound_by_memberships": stake.membership_lock,
        "bound_by_open_work": stake.work_lock,
        "free": stake.free,
        "unbonding": stake.unbonding,
    }
    fields: dict[str, object] = {"provider": address, **{name: Must(amount) for name, amount in amounts.items()}}
    if as_json:
        show_fields({**fields, "unbonds": unbonds}, as_json=True)
        return
    show_fields(fields)
    now = datetime.now(UTC)
    if unbonds:
        show_table(
            UNBONDS,
            [(u.id, Must(u.amount), u.matures_at, u.matures_at <= now) for u in unbonds],
        )
