"""`muster pool list`: the pools of the ledger, and whether they pay for work."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.connection import open_ledger, run
from cli.output import JsonOption, show_table
from ledger.amounts import format_amount
from ledger.client import Ledger
from ledger.client.pools import PoolStatus
from worker.chain.pool_record import PoolRecord, read_pool_record

app = typer.Typer()

COLUMNS = (
    "pool",
    "status",
    "members",
    "price_per_unit",
    "escrow_free",
    "leaving",
    "ended",
    "accepted",
    "refused",
    "expired",
)


@app.command(name="list")
def list_(
    context: typer.Context,
    most: Annotated[int, typer.Option(min=1, max=200, help="Newest pools to look at.")] = 20,
    ended: Annotated[bool, typer.Option("--ended", help="Show pools that have ended, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List pools, newest first, with how their newest 200 pieces of work ended.

    `refused` is the share that validators rejected or found forged, `expired` the share that none judged in time, and
    `leaving` the escrow whose withdrawal the owner has announced.
    """

    async def command() -> None:
        async with open_ledger(context.obj) as ledger:
            newest = await ledger.pools.count()
            rows = [await _row(ledger, pool_id) for pool_id in range(newest, max(0, newest - most), -1)]
        shown = [row for row in rows if ended or row[1] != PoolStatus.ENDED.name.lower()]
        show_table(COLUMNS, shown, as_json=as_json, empty="no pools")

    run(command())


async def _row(ledger: Ledger, pool_id: int) -> tuple[object, ...]:
    entry, terms = await ledger.pools.get(pool_id), await ledger.pools.terms(pool_id)
    record = await read_pool_record(ledger, pool_id)
    return (
        pool_id,
        entry.status.name.lower(),
        entry.member_count,
        format_amount(terms.price_per_unit),
        format_amount(record.free),
        format_amount(record.leaving),
        *shares(record),
    )


def shares(record: PoolRecord) -> tuple[object, ...]:
    """How many pieces of work ended, and which share of them how; `-` where none did."""
    if not record.total:
        return 0, "-", "-", "-"
    parts = (record.accepted, record.refused, record.expired)
    return record.total, *(f"{part / record.total:.0%}" for part in parts)
