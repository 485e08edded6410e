"""Everything under `muster pool`: what is done on the ledger, and what the orchestrator does."""

from cli import (
    pool,
    pool_changes,
    pool_download,
    pool_list,
    pool_members,
    pool_nodes,
    pool_page,
    pool_relays,
    pool_roles,
    pool_runs,
    pool_tasks,
    pool_watch,
    pool_webhooks,
)

app = pool.app
for part in (
    pool_list,
    pool_roles,
    pool_members,
    pool_nodes,
    pool_page,
    pool_tasks,
    pool_changes,
    pool_runs,
    pool_download,
    pool_watch,
    pool_webhooks,
):
    app.add_typer(part.app)
app.add_typer(pool_relays.app, name="relays")
