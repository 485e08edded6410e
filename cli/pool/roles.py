"""`muster pool roles`, `transfer` and `accept`: roles and ownership of a pool."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from cli.connection import OwnerKey, PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, show_table
from cli.output.tables import Column, Columns
from cli.transactions.changes import Change, DryRunOption, YesOption
from ledger.client.pools import Role
from protocol.errors import InvalidInput

ROLES = Columns.of("role", "key", Column("former_key", drop=1), Column("counts_until", drop=2))


class RoleName(StrEnum):
    """Roles that exactly one key holds. A pool can have several validators."""

    MANAGER = "manager"
    ORCHESTRATOR = "orchestrator"
    PUBLISHER = "publisher"


@listing()
async def roles(
    context: typer.Context,
    set_role: Annotated[RoleName | None, typer.Option("--set", help="The role to give to another key.")] = None,
    to: Annotated[str | None, typer.Option(help="Address or key name of the new holder.")] = None,
    grace: Annotated[int, typer.Option(min=0, max=604_800, help="Seconds for which a replaced key stays valid.")] = 0,
    add_validator: Annotated[str | None, typer.Option(help="Address or key name of the validator to add.")] = None,
    remove_validator: Annotated[
        str | None, typer.Option(help="Address or key name of the validator to remove.")
    ] = None,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the roles of a pool, rotate a role's key, or add and remove validators."""
    pool_id = chosen_pool(context.obj, pool)
    if set_role is not None and to is None:
        raise InvalidInput("--set needs --to", hint="muster pool roles --set manager --to ADDRESS")
    changes = bool(set_role or add_validator or remove_validator)
    if dry_run and not changes:
        raise InvalidInput("no change is given", hint="--dry-run needs --set, --add-validator or --remove-validator")
    change = Change(dry_run=dry_run, as_json=as_json)
    async with open_ledger(context.obj, key if changes else None, change) as ledger:
        until = await ledger.now() + timedelta(seconds=grace)
        if set_role is not None and to is not None:
            holder = resolve_address(context.obj, to)
            await ledger.pools.set_role(pool_id, Role[set_role.name], holder, previous_until=until)
        if add_validator is not None:
            await ledger.pools.add_validator(pool_id, resolve_address(context.obj, add_validator))
        if remove_validator is not None:
            await ledger.pools.remove_validator(pool_id, resolve_address(context.obj, remove_validator), until=until)
        holders = {role: await ledger.pools.role_holder(pool_id, role) for role in Role}
        owner = (await ledger.pools.get(pool_id)).owner
        validators = await ledger.pools.validators(pool_id)
    rows: list[tuple[object, ...]] = [("owner", owner, None, None)]
    for role, current in holders.items():
        former = current.previous_until > datetime.now(UTC)
        rows.append(
            (
                role.name.lower(),
                current.holder,
                current.previous if former else None,
                current.previous_until if former else None,
            )
        )
    rows += [("validator", each, None, None) for each in validators]
    if as_json and changes:
        change.show("", pool=pool_id, roles=[dict(zip(ROLES.names, row, strict=True)) for row in rows])
    else:
        show_table(ROLES, rows, as_json=as_json)


async def transfer(
    context: typer.Context,
    to: Annotated[str, typer.Argument(help="Address or key name of the next owner, who must accept.")],
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Offer the pool to another owner."""
    new_owner = resolve_address(context.obj, to)
    pool_id = chosen_pool(context.obj, pool)
    question = f"offer pool {pool_id} with its escrow to {new_owner}? Once accepted, this can't be undone."
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.transfer(pool_id, new_owner)
    text = f"the pool is offered to {new_owner}, who accepts with `muster pool accept`"
    change.show(text, pool=pool_id, offered_to=new_owner)


async def accept(
    context: typer.Context,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take over a pool that was offered to you."""
    change, pool_id = Change(as_json=as_json, dry_run=dry_run), chosen_pool(context.obj, pool)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.accept(pool_id)
        owner = ledger.address
    change.show(f"pool {pool_id} is owned by {owner}", pool=pool_id, owner=owner)
