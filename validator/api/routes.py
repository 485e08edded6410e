"""Routes of the validator: status, parked items, and a person's decisions about them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from protocol.errors import MusterError, NotFound, Unavailable
from protocol.http.openapi import json_body
from protocol.http.tokens import OwnerRequest, owner_access
from protocol.identifiers import EXAMPLE_DIGEST, Address
from protocol.identity.scopes import Scope
from protocol.identity.signing import unix_ms
from protocol.verdicts import Outcome, reason_name
from protocol.versions import release
from validator.api.views import (
    LatencyView,
    LoopView,
    MemberView,
    ParkedList,
    ParkedView,
    QueueView,
    RatesView,
    Resolve,
    StatusView,
    Unparked,
    ValidatorSeen,
    VerdictCount,
)
from validator.dependencies import Dependencies, dependencies_of
from validator.domain.items import ItemId, ParkedItem, Resolution, read_item_id
from validator.queue.parking_order import MOST_LOOKED_AT, interleaved_by_node
from validator.store.members import Member, MemberId

SHOWN_PARKED = 20
"""Maximum number of parked items in the status."""
BODY = 16 * 1024
"""Maximum size of a request's body, in bytes."""

router = APIRouter(prefix="/v1", tags=["validator"])


async def _is_me(address: Address, request: Request) -> bool:
    return address == dependencies_of(request).key.address


Reader = Annotated[OwnerRequest, Depends(owner_access(Scope.READ, is_manager=_is_me, body_limit=BODY))]
"""Access for a bearer token with scope `read`, or for a request signed with the validator's own key."""
Operator = Annotated[OwnerRequest, Depends(owner_access(Scope.OPERATE, is_manager=_is_me, body_limit=BODY))]
"""Access for a bearer token with scope `operate`, or for a request signed with the validator's own key."""
ItemPath = Annotated[
    str, Path(max_length=100, description="A work key (its first verdict), or WORKKEY.KIND", examples=[EXAMPLE_DIGEST])
]


@router.get("/status")
async def get_status(_reader: Reader, request: Request) -> StatusView:
    """Return health, queue, verdicts, latency, rates and loops of this validator."""
    dependencies = dependencies_of(request)
    lengths = await dependencies.queue.lengths()
    parked = interleaved_by_node(await dependencies.queue.parked(limit=MOST_LOOKED_AT), limit=SHOWN_PARKED)
    read_to = dependencies.progress.read_to
    metrics = dependencies.metrics
    files, rows, tokens = metrics.rates()
    return StatusView(
        validator=dependencies.key.address,
        pool_id=dependencies.settings.pool_id,
        version=release(),
        seated=await _is_validator(dependencies),
        chain_block=None if read_to is None else read_to[1],
        next_block=None if read_to is None else read_to[0],
        epoch=await _epoch(dependencies),
        queue=QueueView(
            waiting=lengths.waiting,
            ready=lengths.ready,
            in_hand=lengths.in_hand,
            parked=lengths.parked,
            not_final=await dependencies.deadlines.count(),
        ),
        verdicts=tuple(
            VerdictCount(outcome=outcome.name.lower(), reason=reason_name(reason), count=count)
            for (outcome, reason), count in sorted((await dependencies.counts.all()).items())
        ),
        latency=LatencyView(
            p50_s=dependencies.metrics.latency(0.5),
            p99_s=dependencies.metrics.latency(0.99),
            of=dependencies.metrics.judged,
        ),
        rates=RatesView(files=files, rows=rows, prefilled_tokens=tokens),
        validators=await _validators(dependencies),
        members=await _members(dependencies),
        parked=tuple(_parked(each) for each in parked),
        loops=tuple(
            LoopView(name=each.name, rounds=each.rounds, crashes=each.crashes, last_error=each.last_error)
            for each in request.app.state.loops.states()
        ),
        looks=asdict(dependencies.progress.looks),
    )


@router.get("/parked")
async def list_parked(
    _reader: Reader, request: Request, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> ParkedList:
    """List parked items: each node's oldest item, then each node's second oldest, and so on.

    This order prevents a node with many parked items from hiding the items of other nodes.
    """
    found = await dependencies_of(request).queue.parked(limit=MOST_LOOKED_AT)
    return ParkedList(items=tuple(_parked(each) for each in interleaved_by_node(found, limit=limit)))


@router.post("/parked/retry")
async def retry_all_parked(
    _operator: Operator,
    request: Request,
    code: Annotated[str | None, Query(max_length=100, description="Retry only items with this error code")] = None,
) -> Unparked:
    """Put all parked items, or those with one error code, back into the queue, and reset their attempt counts."""
    dependencies = dependencies_of(request)
    names = [
        each.item.id for each in await dependencies.queue.parked(limit=MOST_LOOKED_AT) if code in {None, each.code}
    ]
    return await _unpark(dependencies, names)


@router.post("/parked/{item}/retry")
async def retry_parked(_operator: Operator, request: Request, item: ItemPath) -> Unparked:
    """Put one parked item back into the queue, and reset its attempt counts."""
    return _some(await _unpark(dependencies_of(request), [read_item_id(item)]), item)


@router.post("/parked/{item}/resolve", openapi_extra=json_body(Resolve))
async def resolve_parked(operator: Operator, request: Request, item: ItemPath) -> Unparked:
    """Decide a parked item by hand: accept it, or reject it without a slash. The contributor can read the reason."""
    decided = operator.read(Resolve)
    resolution = Resolution(outcome=Outcome[decided.outcome.upper()], words=decided.words, by=operator.name)
    return _some(await _unpark(dependencies_of(request), [read_item_id(item)], resolution=resolution), item)


async def _unpark(dependencies: Dependencies, names: list[ItemId], *, resolution: Resolution | None = None) -> Unparked:
    found = tuple([name for name in names if await dependencies.queue.unpark(name, resolution=resolution)])
    dependencies.notify()
    return Unparked(ids=found)


def _some(unparked: Unparked, item: str) -> Unparked:
    if not unparked.ids:
        raise NotFound(
            f"{item} is not parked", hint="`muster validator parked` lists the parked items", code="not-parked"
        )
    return unparked


async def _is_validator(dependencies: Dependencies) -> bool | None:
    try:
        return await dependencies.chain.is_pool_validator()
    except Unavailable:
        return None


async def _epoch(dependencies: Dependencies) -> int | None:
    try:
        return await (await dependencies.chain.connected()).epochs.latest()
    except Unavailable:
        return None


async def _validators(dependencies: Dependencies) -> tuple[ValidatorSeen, ...]:
    here, heard = await dependencies.members.here(), await dependencies.known.last_heard()
    try:
        listed = await dependencies.chain.validators()
    except MusterError:
        listed = sorted(set(here) | set(heard))
    return tuple(
        ValidatorSeen(address=each, here=each in here, heard_at_ms=unix_ms(heard[each]) if each in heard else None)
        for each in listed
    )


async def _members(dependencies: Dependencies) -> tuple[MemberView, ...]:
    found = await dependencies.members.all()
    return tuple(
        _member(each, me=dependencies.members.me)
        for each in sorted(found, key=lambda it: it.id != dependencies.members.me)
    )


def _member(each: Member, *, me: MemberId) -> MemberView:
    condition = each.condition
    return MemberView(
        address=each.validator,
        place=each.place,
        is_this=each.id == me,
        state=condition.state.value if each.is_here else "silent",
        code=condition.code,
        why=condition.why,
        hint=condition.hint,
        since_ms=each.since_ms if each.is_here else each.heard_ms,
        tests=condition.tests,
        numerics=each.numerics,
    )


def _parked(each: ParkedItem) -> ParkedView:
    work = each.item.work
    return ParkedView(
        id=each.item.id,
        key=work.key,
        kind=each.item.kind.value,
        node=work.node,
        step=work.step,
        index=work.index,
        attempts=each.item.attempts,
        parked_at_ms=each.parked_ms,
        deadline_ms=each.item.deadline_s * 1000,
        code=each.code,
        why=each.why,
        hint=each.hint,
    )
