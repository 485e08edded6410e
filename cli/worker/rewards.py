"""`muster worker rewards`: shows the earnings of a provider's nodes.

The numbers come from events, so the number of requests does not grow with the number of submissions. Only open work of
a pool that has changed its price is read piece by piece, because events have no price.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from cli.connection import PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, show_fields
from cli.output.values import Must
from ledger.client import Ledger
from ledger.events.types import (
    LedgerEvent,
    MemberJoined,
    RewardsClaimed,
    VerdictGiven,
    WorkDisputed,
    WorkExpired,
    WorkFinal,
    WorkSubmitted,
)
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome

ProviderOption = Annotated[str, typer.Option(help="Address or key name of the provider.")]


@listing(watch=True)
async def rewards(
    context: typer.Context, provider: ProviderOption = "provider", pool: PoolOption = None, as_json: JsonOption = False
) -> None:
    """Show the earnings of your nodes: claimable now, and from work that is not final yet."""
    address, pool_id = resolve_address(context.obj, provider), chosen_pool(context.obj, pool)
    async with open_ledger(context.obj) as ledger:
        fields = await read_earnings(ledger, pool_id, address)
    show_fields({"provider": address, **fields}, as_json=as_json)


async def read_earnings(ledger: Ledger, pool_id: int, provider: Address) -> dict[str, object]:
    """Returns past, open and lost earnings of a provider's work in a pool, and counts of the work."""
    accrued, joined, submitted = await asyncio.gather(
        ledger.work.accrued(pool_id, provider),
        ledger.history(MemberJoined, pool_id=pool_id),
        ledger.history(WorkSubmitted, pool_id=pool_id),
    )
    final, expired, judged, disputed, claimed = await asyncio.gather(
        ledger.history(WorkFinal, pool_id=pool_id),
        ledger.history(WorkExpired, pool_id=pool_id),
        ledger.history(VerdictGiven, pool_id=pool_id),
        ledger.history(WorkDisputed, pool_id=pool_id),
        ledger.history(RewardsClaimed, pool_id=pool_id, second=provider),
    )
    own = {each.key: each for each in _of_provider(submitted, joined, provider)}
    ended = {each.key for each in final} | {each.key for each in expired}
    contested = {each.key for each in disputed}
    outcomes = {each.key: each.outcome for each in judged}
    open_work = [each for key, each in own.items() if key not in ended]
    worth = await _worth(ledger, pool_id, open_work)
    accepted = [key for key in worth if outcomes.get(key) is Outcome.ACCEPTED and key not in contested]
    unjudged = [key for key in worth if key not in outcomes]
    finished = [each for each in final if each.key in own]
    return {
        "claimable": Must(accrued),
        "accepted_not_final": Must(sum(worth[key] for key in accepted)),
        "not_judged": Must(sum(worth[key] for key in unjudged)),
        "earned_so_far": Must(sum(each.paid for each in finished)),
        "claimed_so_far": Must(sum(each.amount for each in claimed)),
        "slashed_so_far": Must(sum(each.slashed for each in finished)),
        "submissions": len(own),
        "final": len(finished),
        "paid": sum(each.paid > 0 for each in finished),
        "expired": sum(each.key in own for each in expired),
        "open": len(open_work),
    }


def _of_provider(
    submitted: Sequence[WorkSubmitted], joined: Sequence[MemberJoined], provider: Address
) -> list[WorkSubmitted]:
    """Returns the submissions of nodes that belonged to the provider when they submitted."""
    events: list[MemberJoined | WorkSubmitted] = [*joined, *submitted]
    owners: dict[Address, Address] = {}
    found = []
    for event in sorted(events, key=_place):
        if isinstance(event, MemberJoined):
            owners[event.node] = event.provider
        elif owners.get(event.node) == provider:
            found.append(event)
    return found


def _place(event: LedgerEvent) -> tuple[int, int]:
    return event.log.block_number, event.log.index


async def _worth(ledger: Ledger, pool_id: int, open_work: Sequence[WorkSubmitted]) -> Mapping[Digest, int]:
    """Returns the reward of each open piece of work, if it is accepted."""
    if not open_work:
        return {}
    entry = await ledger.pools.get(pool_id)
    if entry.terms_version == 1 and not entry.next_terms_at.timestamp():  # the price has never changed
        price = (await ledger.pools.terms(pool_id)).price_per_unit
        return {each.key: price * each.units for each in open_work}
    records = await asyncio.gather(*(ledger.work.get(each.key) for each in open_work))
    return {each.key: record.reward for each, record in zip(open_work, records, strict=True) if record is not None}
