"""`muster pool page`: prints the address of the pool's web page and the place of its token."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.connection import location_of
from cli.output.printing import JsonOption, note, show_fields
from cli.pool.connection import Where, token_of, token_place
from protocol.wire.pool import PAGE_PATH


def page(
    context: typer.Context,
    *,
    where: Where = None,
    show_token: Annotated[
        bool, typer.Option("--show-token", help="Also print the token; anyone who reads it can use it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the address of the pool's web page, and where its token is configured."""
    place = token_place(context.obj)
    fields: dict[str, object] = {"page": location_of(context.obj, where).url + PAGE_PATH, "token": place}
    if show_token:
        fields["token_itself"] = token_of(context.obj)
    show_fields(fields, as_json=as_json)
    if place is None and not as_json:
        note("no token is configured here: `muster token new` makes one, with the hash for [[orchestrator.tokens]]")
    elif not show_token and not as_json:
        note("open the page and paste the token, which --show-token prints; a token with scope `read` is enough")
