"""`muster pool webhooks`, `add-webhook`, `rotate-webhook` and `delete-webhook`: deliver the pool's events to URLs."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from pydantic import ValidationError

from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_fields, show_json, show_result, show_table
from cli.output.quantities import moment
from cli.output.tables import Column, Columns
from cli.pool.connection import Manager, Where, open_orchestrator
from cli.transactions.changes import Change, DryRunOption, YesOption
from protocol.errors import InvalidInput
from protocol.wire.events import NewWebhook

WEBHOOKS = Columns.of(
    "id",
    Column("url", least=20),
    Column("events", drop=2, least=8),
    Column("made", drop=3),
    "delivered",
    Column("last_error", drop=1, least=12),
)


@listing(watch=True)
async def webhooks(
    context: typer.Context, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """List webhooks with the state of their deliveries."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await client.webhooks()
    if as_json:
        show_json(found)
        return
    rows = [
        (
            hook.id,
            hook.url,
            hook.events or "all",
            moment(hook.created_at_ms),
            hook.delivered,
            hook.last_error,
        )
        for hook in found
    ]
    show_table(WEBHOOKS, rows, empty="no webhook was made yet")


async def add_webhook(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="https URL that receives events by POST.")],
    *,
    event: Annotated[
        list[str] | None, typer.Option(help="Kind of event, or a prefix of kinds such as `node.`; repeatable.")
    ] = None,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver the pool's events to a URL, in signed requests."""
    try:
        wanted = NewWebhook(url=url, events=tuple(event or ()))
    except ValidationError:
        raise InvalidInput(
            f"{url[:200]!r} is not a URL for events, or an event's name is too long", hint="https://host/path"
        ) from None
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        made = await client.create_webhook(wanted)
    show_fields({"id": made.webhook.id, "secret": made.secret.get_secret_value()}, as_json=as_json)
    note("the secret is not shown again; it verifies X-Muster-Webhook-Signature (HMAC-SHA256) of each delivery")


async def rotate_webhook(
    context: typer.Context,
    webhook: Annotated[str, typer.Argument(help="Id of the webhook.")],
    *,
    overlap: Annotated[
        int, typer.Option(min=0, max=7 * 86_400, help="Seconds for which the old secret stays valid, too.")
    ] = 86_400,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Give a webhook a new secret; the old one stays valid for a day, or for --overlap."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        made = await client.rotate_webhook_secret(webhook, overlap=timedelta(seconds=overlap))
    until = made.webhook.old_secret_until_ms
    fields = {
        "id": made.webhook.id,
        "secret": made.secret.get_secret_value(),
        "old_secret_until": None if until is None else moment(until),
    }
    show_fields(fields, as_json=as_json)
    if until is not None:
        note(
            "until then the new secret verifies X-Muster-Webhook-Signature-New, and afterwards the header without -New"
        )


async def delete_webhook(
    context: typer.Context,
    webhook: Annotated[str, typer.Argument(help="Id of the webhook.")],
    where: Where = None,
    manager: Manager = None,
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a webhook, so that its URL receives no more events."""
    question = f"delete the webhook {webhook}? Its secret can't be restored."
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    change.plan_request(f"delete the webhook {webhook}")
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        await client.delete_webhook(webhook)
    show_result(f"{webhook} is deleted", {"id": webhook, "deleted": True}, as_json=as_json)
