"""Routes of the pool's events and webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from orchestrator.api.access import Admin, IdentifierPath, Reader
from orchestrator.api.streams import EVENTS_DESCRIPTION, follow
from orchestrator.dependencies import dependencies_of
from orchestrator.webhook_urls import check_destination
from protocol.errors import InvalidInput, Unavailable
from protocol.http.openapi import event_stream, json_body
from protocol.wire.pool import CreatedWebhook, EventPage, NewWebhook, PoolEvent, Webhook, WebhookList

EVENTS_AT_ONCE = 500
"""Maximum number of events in one answer, and in one read for a stream."""

router = APIRouter(prefix="/v1", tags=["events"])

After = Annotated[
    str | None,
    Query(
        max_length=41,
        pattern="^[0-9]{1,20}-[0-9]{1,20}$",
        description="List events after this id; default: the newest ones",
    ),
]


@router.get(
    "/events",
    response_model=EventPage,
    responses=event_stream(
        EVENTS_DESCRIPTION.format("PoolEvent"),
        'id: 1767225600000-0\ndata: {"id":"1767225600000-0","time_ms":1767225600000,"kind":"node.dead",'
        '"detail":"no heartbeat for 50 s","actor":"liveness","node":null,"task_id":null,"assignment_id":null}\n\n',
    ),
)
async def list_events(
    _owner: Reader,
    request: Request,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=EVENTS_AT_ONCE)] = 100,
    follow_: Annotated[bool, Query(alias="follow", description="Stream further events as server-sent events")] = False,
) -> Response | EventPage:
    """List events of nodes, assignments and tasks, oldest first."""
    dependencies = dependencies_of(request)
    if after is None and not follow_:
        found = await dependencies.events.last(limit=limit)
        return EventPage(events=tuple(found), next_cursor=found[-1].id if found else "0-0")
    start = after if after is not None else await dependencies.events.newest()
    if not follow_:
        found = await dependencies.events.after(start, limit=limit)
        return EventPage(events=tuple(found), next_cursor=found[-1].id if found else start)
    cursor = start

    async def read() -> Sequence[tuple[str, BaseModel]]:
        nonlocal cursor
        news: list[PoolEvent] = await dependencies.events.after(cursor, limit=EVENTS_AT_ONCE)
        if news:
            cursor = news[-1].id
        return [(event.id, event) for event in news]

    return follow(dependencies, request, read)


@router.post("/webhooks", status_code=201, tags=["webhooks"], openapi_extra=json_body(NewWebhook))
async def create_webhook(owner: Admin, request: Request) -> CreatedWebhook:
    """Create a webhook. Only this response shows the secret that signs deliveries."""
    dependencies = dependencies_of(request)
    new = owner.read(NewWebhook)
    try:
        await check_destination(new.url, allow_private=dependencies.settings.webhooks_to_private_networks)
    except Unavailable as error:
        # An unknown host name is the caller's mistake when a webhook is created; at a delivery it is an outage.
        raise InvalidInput(error.detail, hint=error.hint, code="unknown-host", retryable=True) from error
    return await dependencies.webhooks.create(new, cursor=await dependencies.events.newest())


@router.get("/webhooks", tags=["webhooks"])
async def list_webhooks(_owner: Admin, request: Request) -> WebhookList:
    """List webhooks with the state of their deliveries."""
    webhooks = dependencies_of(request).webhooks
    return WebhookList(webhooks=tuple(one.webhook for one in await webhooks.get_many(await webhooks.ids())))


@router.get("/webhooks/{webhook_id}", tags=["webhooks"])
async def get_webhook(_owner: Admin, request: Request, webhook_id: IdentifierPath) -> Webhook:
    """Return one webhook."""
    return (await dependencies_of(request).webhooks.get(webhook_id)).webhook


@router.delete("/webhooks/{webhook_id}", status_code=204, tags=["webhooks"])
async def delete_webhook(_owner: Admin, request: Request, webhook_id: IdentifierPath) -> Response:
    """Delete a webhook."""
    await dependencies_of(request).webhooks.delete(webhook_id)
    return Response(status_code=204)
