"""`muster gateway`: runs the gateway, shows its state, and manages its tokens."""

from __future__ import annotations

from cli.gateway.opened import opened_database
from cli.gateway.token import app as token
from cli.gateway.verifier import verifier
from cli.groups import CommandGroup
from cli.output.listing import listing
from cli.output.printing import JsonOption, show_fields
from gateway.cli import run
from protocol.runtime.configuration_file import ConfigOption, reads

app = CommandGroup(name="gateway", no_args_is_help=True, help="Offer a pool's workers to OpenAI clients.")
app.command()(run)
app.command()(verifier)
app.add_typer(token, name="token")


@app.command()
@reads("gateway")
@listing(watch=True)
async def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show sessions, waiting requests, and tokens per second in the last minute, as Redis has them."""
    async with opened_database(config) as database:
        counts = await database.counts()
        show_fields(counts | {"tokens_per_second": round(await database.tokens_per_second(), 1)}, as_json=as_json)
