"""`muster pool roles`, `transfer` and `accept`: roles and ownership of a pool."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from cli.connection import OwnerKey, PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.listing import listing
from cli.output import JsonOption, say, show_table
from cli.tables import Column, Columns
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
    as_json: JsonOption = False,
) -> None:
    """Show the roles of a pool, rotate a role's key, or add and remove validators."""
    pool_id = chosen_pool(context.obj, pool)
    if set_role is not None and to is None:
        raise InvalidInput("--set needs --to", hint="muster pool roles --set manager --to ADDRESS")
    changes = bool(set_role or add_validator or remove_validator)
    async with open_ledger(context.obj, key if changes else None) as ledger:
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
    show_table(ROLES, rows, as_json=as_json)


async def transfer(
    context: typer.Context,
    to: Annotated[str, typer.Argument(help="Address or key name of the next owner, who must accept.")],
    pool: PoolOption = None,
    key: OwnerKey = "owner",
) -> None:
    """Offer the pool to another owner."""
    new_owner = resolve_address(context.obj, to)
    async with open_ledger(context.obj, key) as ledger:
        await ledger.pools.transfer(chosen_pool(context.obj, pool), new_owner)
    say(f"the pool is offered to {new_owner}, who accepts with `muster pool accept`")


async def accept(context: typer.Context, pool: PoolOption = None, key: OwnerKey = "owner") -> None:
    """Take over a pool that was offered to you."""
    async with open_ledger(context.obj, key) as ledger:
        await ledger.pools.accept(chosen_pool(context.obj, pool))
        say(f"pool {chosen_pool(context.obj, pool)} is owned by {ledger.address}")
