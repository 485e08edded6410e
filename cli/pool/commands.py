"""Assembles the commands of `muster pool`, which use the ledger or the orchestrator."""

from cli.pool import (
    changes,
    download,
    ledger,
    listing,
    members,
    nodes,
    page,
    providers,
    relays,
    roles,
    runs,
    tasks,
    watch,
    webhooks,
)

app = ledger.app
for part in (
    listing,
    roles,
    members,
    nodes,
    providers,
    page,
    tasks,
    changes,
    runs,
    download,
    watch,
    webhooks,
):
    app.add_typer(part.app)
app.add_typer(relays.app, name="relays")
