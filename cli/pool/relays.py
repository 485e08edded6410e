"""`muster pool relays`: allows and lists checkpoint relays."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.groups import CommandGroup
from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, show_json, show_result, show_table
from cli.output.quantities import moment
from cli.output.tables import Column, Columns
from cli.pool.connection import Manager, Where, open_orchestrator

app = CommandGroup(no_args_is_help=True, help="Allow, deny and list checkpoint relays.")

RELAYS = Columns.of("relay", Column("url", least=20), "state", Column("until", drop=1))

Relay = Annotated[str, typer.Argument(help="The relay's address, or the name of a key.")]


@app.command(name="list")
@listing(watch=True)
async def list_(
    context: typer.Context, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """List the allowed relays, and whether each one is registered now (live)."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await client.relays()
    if as_json:
        show_json(found)
        return
    rows = [
        (
            each.relay,
            each.url,
            "live" if each.live else "silent",
            moment(each.expires_at_ms),
        )
        for each in found
    ]
    show_table(RELAYS, rows, empty="no relay is allowed yet")


@app.command()
async def allow(
    context: typer.Context, relay: Relay, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """Allow a relay to register; nodes receive its URL while it is registered."""
    address = resolve_address(context.obj, relay)
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        await client.allow_relay(address)
    text = f"{address} may register: muster shardcast relay --orchestrator URL --public-url URL …"
    show_result(text, {"relay": address, "allowed": True}, as_json=as_json)


@app.command()
async def deny(
    context: typer.Context, relay: Relay, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """Forbid a relay; nodes no longer receive its URL. Running downloads continue."""
    address = resolve_address(context.obj, relay)
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        await client.deny_relay(address)
    show_result(f"{address} is denied", {"relay": address, "allowed": False}, as_json=as_json)
