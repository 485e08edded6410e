"""`muster pool list`: lists the pools on the ledger with their payment record."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.connection import open_ledger
from cli.listing import listing
from cli.output import JsonOption, show_table
from cli.tables import Column, Columns
from ledger.amounts import format_amount, plain_amount
from ledger.client import Ledger
from ledger.client.pools import PoolStatus
from worker.chain.pool_record import PoolRecord, read_pool_record

POOLS = Columns.of(
    "pool",
    "status",
    "members",
    "price_per_unit",
    "escrow_free",
    Column("leaving", drop=2),
    Column("ended", drop=1),
    "accepted",
    "refused",
    "expired",
)


@listing()
async def list_(
    context: typer.Context,
    most: Annotated[int, typer.Option(min=1, max=200, help="Number of newest pools to read.")] = 20,
    ended: Annotated[bool, typer.Option("--ended", help="Show pools that have ended, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List pools, newest first, with the outcomes of their newest 200 works.

    `refused` is the share that validators rejected or judged forged, and `expired` the share that no validator judged
    in time. `leaving` is the escrow whose withdrawal the owner has announced.
    """
    async with open_ledger(context.obj) as ledger:
        newest = await ledger.pools.count()
        rows = [await _row(ledger, pool_id, as_json=as_json) for pool_id in range(newest, max(0, newest - most), -1)]
    shown = [row for row in rows if ended or row[1] != PoolStatus.ENDED.name.lower()]
    show_table(POOLS, shown, as_json=as_json, empty="no pools")


async def _row(ledger: Ledger, pool_id: int, *, as_json: bool) -> tuple[object, ...]:
    entry, terms = await ledger.pools.get(pool_id), await ledger.pools.terms(pool_id)
    record = await read_pool_record(ledger, pool_id)
    amounts = (terms.price_per_unit, record.free, record.leaving)
    return (
        pool_id,
        entry.status.name.lower(),
        entry.member_count,
        *((plain_amount if as_json else format_amount)(amount) for amount in amounts),
        *shares(record, as_json=as_json),
    )


def shares(record: PoolRecord, *, as_json: bool) -> tuple[object, ...]:
    """Returns the number of finished works, and the share of each outcome.

    Shares are percentages, in JSON numbers from 0 to 1. Without finished work they are `-`, in JSON null.
    """
    if not record.total:
        return 0, *(3 * (None if as_json else "-",))
    parts = [part / record.total for part in (record.accepted, record.refused, record.expired)]
    return record.total, *(parts if as_json else (f"{part:.0%}" for part in parts))
