"""Routes of the pool's events and webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, StringConstraints

from orchestrator.api.access import Admin, IdentifierPath, Reader
from orchestrator.api.idempotency import AdminOnce, OnceRoute
from orchestrator.api.paging import CreatedAfter, CreatedBefore, Order, Sort, read_page
from orchestrator.api.streams import EVENTS_DESCRIPTION, follow
from orchestrator.dependencies import Dependencies, dependencies_of
from orchestrator.domain.event_kinds import hint_for, unknown_patterns, wants
from orchestrator.store.events import START, EventStore, Wanted, is_earlier
from orchestrator.store.idempotency import created_id
from orchestrator.webhook_urls import check_destination
from protocol.errors import InvalidInput, Unavailable, Unprocessable
from protocol.http.openapi import event_stream, json_body
from protocol.identifiers import WireAddress
from protocol.wire.events import CreatedWebhook, EventPage, NewWebhook, PoolEvent, SecretRotation, Webhook, WebhookList

CLOCK_MARGIN_MS = 60_000
"""Maximum difference of the orchestrators' clocks up to which a listing by time is complete."""

EVENTS_AT_ONCE = 500
"""Maximum number of events in one answer, and in one read for a stream."""

router = APIRouter(prefix="/v1", tags=["events"], route_class=OnceRoute)

EVENT_ID = "^[0-9]{1,20}-[0-9]{1,20}$"
After = Annotated[
    str | None,
    Query(
        max_length=41,
        pattern=EVENT_ID,
        description="Only events after this id; default: the newest ones, or with filters the oldest ones that match",
    ),
]
Before = Annotated[str | None, Query(max_length=41, pattern=EVENT_ID, description="Only events before this id")]
Kinds = Annotated[
    list[Annotated[str, StringConstraints(max_length=64)]],
    Query(max_length=64, description="Only these kinds, or prefixes with a dot, such as `node.`; may be repeated"),
]
OfIdentifier = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$", description="Only events about this one")]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=41,
        pattern=EVENT_ID,
        description="With `follow`: continue after this event, instead of `after`. 410 if later events may be lost",
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
    *,
    after: After = None,
    before: Before = None,
    kind: Kinds = [],  # noqa: B006 - FastAPI copies the default
    node: Annotated[WireAddress | None, Query(pattern="^0x[0-9a-fA-F]{40}$", description="Only this node's")] = None,
    task: OfIdentifier = None,
    assignment: OfIdentifier = None,
    created_after_ms: CreatedAfter = None,
    created_before_ms: CreatedBefore = None,
    sort: Sort = Order.OLDEST,
    limit: Annotated[int, Query(ge=1, le=EVENTS_AT_ONCE)] = 100,
    follow_: Annotated[bool, Query(alias="follow", description="Stream further events as server-sent events")] = False,
    last_event_id: LastEventId = None,
) -> Response | EventPage:
    """List events of nodes, assignments, tasks, the run and the ledger, oldest first unless `sort` says otherwise.

    Without `after` and filters, these are the newest ones; with filters, the oldest ones that match. One request reads
    at most 10,000 events, so a filtered page may be short or empty although further events match. `next_cursor` is the
    next request's `after`, or with `sort=newest` its `before`; the listing ends when it is the same as the present one.
    """
    dependencies = dependencies_of(request)
    for pattern in unknown_patterns(kind)[:1]:
        raise Unprocessable(
            f"there is no kind of event {pattern!r}", fields={"query.kind": "unknown kind"}, hint=hint_for(pattern)
        )

    def wanted(fields: Mapping[str, str]) -> bool:
        return (
            wants(kind, fields["kind"])
            and (node is None or fields["node"] == node)
            and (task is None or fields["task"] == task)
            and (assignment is None or fields.get("assignment") == assignment)
            and (created_after_ms is None or int(fields["time"]) > created_after_ms)
            and (created_before_ms is None or int(fields["time"]) < created_before_ms)
        )

    if follow_:
        if before is not None or created_before_ms is not None or sort is not Order.OLDEST:
            raise Unprocessable(
                "a stream has no end, and its events are in order of time",
                hint="leave out `before`, `created_before_ms` and `sort` with `follow`",
            )
        return await _stream(request, last_event_id, after, wanted)
    filters = (*kind, node, task, assignment, created_after_ms, created_before_ms)
    chosen = wanted if any(one is not None for one in filters) else None
    after, before = await _within(dependencies.events, after, before, created_after_ms, created_before_ms)
    if sort is Order.OLDEST and (after is not None or chosen is not None):
        return await _later(dependencies, after or START, before, limit=limit, wanted=chosen)
    return await _earlier(dependencies, after, before, limit=limit, wanted=chosen, sort=sort)


async def _within(
    events: EventStore,
    after: str | None,
    before: str | None,
    created_after_ms: int | None,
    created_before_ms: int | None,
) -> tuple[str | None, str | None]:
    """Narrows the range of ids to the wanted times, so that no event outside of them is read."""
    if created_after_ms is not None:
        last, _ = await events.around(created_after_ms - CLOCK_MARGIN_MS)
        after = last if after is None or is_earlier(after, last) else after
    if created_before_ms is not None:
        _, first = await events.around(created_before_ms + CLOCK_MARGIN_MS)
        before = first if before is None or (first is not None and is_earlier(first, before)) else before
    return after, before


async def _later(
    dependencies: Dependencies, after: str, before: str | None, *, limit: int, wanted: Wanted | None
) -> EventPage:
    """Returns the first events after an id."""

    async def read(position: str | None, size: int) -> list[tuple[str, PoolEvent | None]]:
        found = await dependencies.events.entries_after(position or after, limit=size, wanted=wanted)
        return [each for each in found if before is None or is_earlier(each[0], before)]

    page = await read_page(read, after=after, limit=limit, turns=dependencies.filtered_reads if wanted else None)
    return EventPage(events=tuple(page.items), next_cursor=page.position or after)


async def _earlier(
    dependencies: Dependencies,
    after: str | None,
    before: str | None,
    *,
    limit: int,
    wanted: Wanted | None,
    sort: Order,
) -> EventPage:
    """Returns the last events before an id, in the requested order."""
    newest: str | None = None

    async def read(position: str | None, size: int) -> list[tuple[str, PoolEvent | None]]:
        nonlocal newest
        found = await dependencies.events.entries_before(position, limit=size, wanted=wanted)
        if found and newest is None:
            newest = found[0][0]
        return [each for each in found if after is None or is_earlier(after, each[0])]

    page = await read_page(read, after=before, limit=limit, turns=dependencies.filtered_reads if wanted else None)
    if sort is Order.NEWEST:
        return EventPage(events=tuple(page.items), next_cursor=page.position or START)
    return EventPage(events=tuple(reversed(page.items)), next_cursor=newest or before or START)


async def _stream(request: Request, last_event_id: str | None, after: str | None, wanted: Wanted) -> Response:
    dependencies = dependencies_of(request)
    if last_event_id is not None:
        await dependencies.events.check_kept(last_event_id)
    cursor = last_event_id or after or await dependencies.events.newest()

    async def read() -> Sequence[tuple[str, BaseModel]]:
        nonlocal cursor
        news = await dependencies.events.entries_after(cursor, limit=EVENTS_AT_ONCE, wanted=wanted)
        if news:
            cursor = news[-1][0]
        return [(name, event) for name, event in news if event is not None]

    return follow(dependencies, request, read)


@router.post("/webhooks", status_code=201, tags=["webhooks"], openapi_extra=json_body(NewWebhook))
async def create_webhook(owner: AdminOnce, request: Request) -> CreatedWebhook:
    """Create a webhook. Only this response shows the secret that signs deliveries."""
    dependencies = dependencies_of(request)
    new = owner.read(NewWebhook)
    try:
        await check_destination(new.url, allow_private=dependencies.settings.webhooks_to_private_networks)
    except Unavailable as error:
        # An unknown host name is the caller's mistake when a webhook is created; at a delivery it is an outage.
        raise InvalidInput(error.detail, hint=error.hint, code="unknown-host", retryable=True) from error
    return await dependencies.webhooks.create(
        new,
        identifier=created_id("webhook", owner.name, owner.idempotency_key),
        cursor=await dependencies.events.newest(),
    )


@router.post(
    "/webhooks/{webhook_id}/secret", tags=["webhooks"], openapi_extra=json_body(SecretRotation, required=False)
)
async def rotate_webhook_secret(owner: AdminOnce, request: Request, webhook_id: IdentifierPath) -> CreatedWebhook:
    """Give a webhook a new secret. Only this response shows it.

    For the time of the overlap, deliveries are signed with both secrets.
    """
    wish = owner.read(SecretRotation) if owner.body else SecretRotation()
    return await dependencies_of(request).webhooks.rotate(
        webhook_id,
        overlap=timedelta(seconds=wish.overlap_seconds),
        rotation=created_id("rotation", owner.name, owner.idempotency_key),
    )


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
