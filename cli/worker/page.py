"""`muster worker page`: prints a one-time link to the contributor's page at the pool."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from cli.connection import location_of
from cli.keys import open_node_key
from cli.output.printing import JsonOption, note, show_fields
from cli.pool.connection import Where
from protocol.clients import NodeClient


async def page(
    context: typer.Context,
    *,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Name of the key of a node, or of its provider; default: the key in \\[worker] keystore."
        ),
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="End all open sessions instead.")] = False,
    where: Where = None,
    as_json: JsonOption = False,
) -> None:
    """Print a one-time link to your page at the pool: earnings, verdicts and stake.

    Whoever opens the link first, within five minutes, can read the page for twelve hours. The page holds no key and can
    change nothing.
    """
    async with NodeClient(location_of(context.obj, where), key=open_node_key(context.obj, key)) as client:
        if revoke:
            show_fields({"ended_sessions": await client.revoke_sessions()}, as_json=as_json)
            return
        link = await client.login()
    expires = datetime.fromtimestamp(link.expires_at_ms / 1000, UTC)
    show_fields({"page": link.url, "provider": link.provider, "valid_until": expires}, as_json=as_json)
    if not as_json:
        note("open the link in a browser; it works once, and --revoke ends all sessions")
