"""`muster pool list`: lists the pools on the ledger with their payment record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.connection import open_ledger
from cli.output import JsonOption, note, say, show_fields, show_json
from cli.pool.joining import ask_pool
from ledger.amounts import format_amount, plain_amount
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
    if as_json:
        show_json([_as_json(pool) for pool in pools])
        return
    for pool in pools:
        show_fields(_as_text(pool))
        say("")
    if not pools:
        note("no pools")
    if oldest > 1:
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
        note(f"pool {pool_id}: {error.detail}")
        return None
    signer = found.orchestrator
    if found.pool_id != pool_id or signer is None or not await ledger.pools.is_orchestrator(pool_id, signer):
        note(f"pool {pool_id}: {url} is not served by the pool's orchestrator")
        return None
    return found.discovery


def _as_json(pool: _ListedPool) -> dict[str, object]:
    ended, *parts = shares(pool.record, as_json=True)
    return {
        "pool": pool.pool_id,
        "status": pool.entry.status.name.lower(),
        "manager": pool.manager,
        "members": pool.entry.member_count,
        "max_members": pool.terms.max_nodes,
        "terms_version": pool.entry.terms_version,
        "price_per_unit": plain_amount(pool.terms.price_per_unit),
        "penalty_per_unit": plain_amount(pool.terms.penalty_per_unit),
        "stake_per_capacity": plain_amount(pool.terms.stake_per_capacity),
        "min_capacity": pool.terms.min_capacity,
        "earned": plain_amount(pool.earned),
        "escrow_free": plain_amount(pool.record.free),
        "leaving": plain_amount(pool.record.leaving),
        "ended": ended,
        **dict(zip(("accepted", "refused", "expired"), parts, strict=True)),
        "url": pool.url,
        "discovery": pool.discovery,
    }


def _as_text(pool: _ListedPool) -> dict[str, object]:
    """Returns lines that fit 80 columns, unless amounts have many decimals or URLs are long."""
    terms, money = pool.terms, format_amount
    ended, accepted, refused, expired = shares(pool.record, as_json=False)
    fields: dict[str, object] = {
        f"pool {pool.pool_id}": (
            f"{pool.entry.status.name.lower()}, {pool.entry.member_count:,} of {terms.max_nodes:,} members"
        ),
        "pays": f"{money(terms.price_per_unit)} MUST per unit; {money(pool.earned)} MUST earned so far",
        "stake": f"{money(terms.stake_per_capacity)} MUST per capacity; least capacity {terms.min_capacity}",
        "penalty": f"{money(terms.penalty_per_unit)} MUST per forged unit; terms version {pool.entry.terms_version}",
        "escrow": f"{money(pool.record.free)} MUST free, {money(pool.record.leaving)} MUST leaving",
        "work": (
            f"newest {ended}: {accepted} accepted, {refused} refused, {expired} expired"
            if ended
            else "none ended lately"
        ),
        "manager": pool.manager,
        "url": pool.url,
    }
    if pool.discovery is not None:
        fields["discovery"] = list(pool.discovery)
    return fields


def shares(record: PoolRecord, *, as_json: bool) -> tuple[object, ...]:
    """Returns the number of finished works, and the share of each outcome.

    Shares are percentages, in JSON numbers from 0 to 1. Without finished work they are `-`, in JSON null.
    """
    if not record.total:
        return 0, *(3 * (None if as_json else "-",))
    parts = [part / record.total for part in (record.accepted, record.refused, record.expired)]
    return record.total, *(parts if as_json else (f"{part:.0%}" for part in parts))
