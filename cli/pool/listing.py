"""`muster pool list`: lists the pools on the ledger with their payment record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.connection import open_ledger
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_table, strangers
from cli.output.tables import Column, Columns
from cli.output.values import Must, Shown
from cli.pool.joining import ask_pool
from ledger.client import Ledger
from ledger.client.pools import Pool, PoolStatus, Role, Terms
from protocol.errors import MusterError
from protocol.identifiers import Address
from worker.chain.pool_record import PoolRecord, read_pool_record

AT_ONCE = 8
"""Maximum number of pools that are read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedPool:
    """What the list shows of one pool; money is in the token's smallest unit."""

    pool_id: int
    entry: Pool
    terms: Terms
    manager: Address
    record: PoolRecord
    earned: int
    """Rewards and verdict fees of all final work since the pool exists."""
    discovery: tuple[str, ...] | None
    """URLs of the pool's discovery services; None if its orchestrator was not asked or did not answer."""

    @property
    def url(self) -> str | None:
        """The pool's URL, if its owner put one on the ledger."""
        return self.entry.data_uri if self.entry.data_uri.startswith(("https://", "http://")) else None


POOLS = Columns.of(
    "pool",
    "status",
    Column("members", drop=5),
    Column("max_members", drop=13),
    "price_per_unit",
    Column("stake_per_capacity", drop=3),
    Column("penalty_per_unit", drop=7),
    Column("min_capacity", drop=12),
    Column("terms_version", drop=11),
    "escrow_free",
    Column("leaving", drop=6),
    Column("earned", drop=8),
    Column("ended", drop=4),
    "accepted",
    Column("refused", drop=2),
    Column("expired", drop=2),
    Column("url", drop=1, least=16),
    Column("manager", drop=9),
    Column("discovery", drop=3, least=18),
)


@listing()
async def list_(
    context: typer.Context,
    most: Annotated[int, typer.Option(min=1, max=200, help="Number of newest pools to read.")] = 20,
    before: Annotated[int | None, typer.Option(min=2, help="Read only pools with smaller numbers than this.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Show pools that have ended, too.")] = False,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask",
            help="Ask the URL of each pool for its discovery services. Their owners then see this machine's IP.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List pools, newest first, with the outcomes of their newest 200 works.

    `refused` is the share that validators rejected or judged forged, and `expired` the share that no validator judged
    in time. `leaving` is the escrow whose withdrawal the owner has announced.
    """
    turns = asyncio.Semaphore(AT_ONCE)
    async with open_ledger(context.obj) as ledger:

        async def read(pool_id: int) -> _ListedPool | None:
            async with turns:
                return await _read(ledger, pool_id, ended=ended, ask=ask)

        newest = min(await ledger.pools.count(), (before or 2**32) - 1)
        oldest = max(1, newest - most + 1)
        read_pools = await asyncio.gather(*(read(pool_id) for pool_id in range(newest, oldest - 1, -1)))
    pools = [pool for pool in read_pools if pool is not None]
    show_table(POOLS, [_row(pool) for pool in pools], as_json=as_json, empty="no pools")
    if oldest > 1 and not as_json:
        note(f"older pools: --before {oldest}")


async def _read(ledger: Ledger, pool_id: int, *, ended: bool, ask: bool) -> _ListedPool | None:
    """Reads one pool; None if it has ended and such pools are not wanted."""
    entry = await ledger.pools.get(pool_id)
    if entry.status is PoolStatus.ENDED and not ended:
        return None
    terms, manager, totals, record = await asyncio.gather(
        ledger.pools.terms(pool_id),
        ledger.pools.role_holder(pool_id, Role.MANAGER),
        ledger.work.totals(pool_id),
        read_pool_record(ledger, pool_id),
    )
    return _ListedPool(
        pool_id=pool_id,
        entry=entry,
        terms=terms,
        manager=manager.holder,
        record=record,
        earned=totals.accrued,
        discovery=await _discovery(ledger, pool_id, entry.data_uri) if ask else None,
    )


async def _discovery(ledger: Ledger, pool_id: int, url: str) -> tuple[str, ...] | None:
    """Returns the discovery services that the pool's orchestrator names.

    None if there is no answer that the pool's orchestrator key signed.
    """
    try:
        found = await ask_pool(url, allow_plain_http=False)
    except MusterError as error:
        note(f"pool {pool_id}: {strangers(error.detail)}")
        return None
    signer = found.orchestrator
    if found.pool_id != pool_id or signer is None or not await ledger.pools.is_orchestrator(pool_id, signer):
        note(f"pool {pool_id}: {strangers(url)} is not served by the pool's orchestrator")
        return None
    return found.discovery


def _row(pool: _ListedPool) -> tuple[object, ...]:
    """Returns the values of `POOLS`."""
    terms, record = pool.terms, pool.record
    return (
        pool.pool_id,
        pool.entry.status.name.lower(),
        pool.entry.member_count,
        terms.max_nodes,
        Must(terms.price_per_unit),
        Must(terms.stake_per_capacity),
        Must(terms.penalty_per_unit),
        terms.min_capacity,
        pool.entry.terms_version,
        Must(record.free),
        Must(record.leaving),
        Must(pool.earned),
        record.total,
        *(_share(part, record.total) for part in (record.accepted, record.refused, record.expired)),
        pool.url,
        pool.manager,
        pool.discovery,
    )


def _share(part: int, total: int) -> Shown | None:
    """Returns the share of the ended works, shown as a percentage; None if there are none."""
    return Shown(part / total, f"{part / total:.0%}") if total else None
