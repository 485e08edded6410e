"""`muster pool`: creates, funds, configures, shows and closes a pool."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated

import typer

from cli.connection import OwnerKey, PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, show_fields, show_json, warn
from cli.output.values import Must
from cli.pool.economics import attacks, audit_stages, forgeries, show_attacks, show_audits
from cli.transactions.changes import Change, DryRunOption, YesOption
from ledger.amounts import format_amount, parse_amount
from ledger.client import Ledger
from ledger.client.pools import PoolStatus, Roles, Terms
from ledger.economics import DeliveryRules, explain_economics
from protocol.errors import Conflict, InvalidInput
from protocol.identifiers import Address

DEFAULT_LEASE = timedelta(seconds=600)
"""Default of the orchestrator's setting `run_lease_s`."""
LEAST_FOR_PROVISIONAL = 4
"""Smallest number of validators with which a contradicting verdict needs the agreement of another validator."""

Price = Annotated[str, typer.Option(help="MUST for one work unit (one token).")]
Penalty = Annotated[
    str | None,
    typer.Option(help="MUST lost for one forged unit; default: the smallest that deters forgery at the audit floor."),
]
Seconds = Annotated[int, typer.Option(min=1)]


async def create(
    context: typer.Context,
    domain: Annotated[int, typer.Option(min=1, help="Domain of the pool.")] = 1,
    manager: Annotated[str, typer.Option(help="Address or key name of the manager.")] = "manager",
    orchestrator: Annotated[str, typer.Option(help="Address or key name of the orchestrator.")] = "orchestrator",
    publisher: Annotated[str, typer.Option(help="Address or key name of the publisher.")] = "publisher",
    validator: Annotated[list[str] | None, typer.Option(help="Address or key name; may be repeated.")] = None,
    price: Price = "0.0001",
    penalty: Penalty = None,
    stake_per_capacity: Annotated[str, typer.Option(help="MUST of stake that a unit of capacity binds.")] = "10",
    audit_floor: Annotated[
        float, typer.Option(min=0.0001, max=1, help="Smallest share of rows that is audited.")
    ] = 0.1,
    verdict_fee: Annotated[
        str, typer.Option(help="MUST that a validator earns for a verdict or a paid second look.")
    ] = "0",
    look_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of first verdicts for which a second look is paid.")
    ] = 0.0,
    judge_period: Seconds = 3600,
    challenge_period: Seconds = 3600,
    dispute_period: Seconds = 7200,
    notice_period: Seconds = 3600,
    max_nodes: Annotated[int, typer.Option(min=1, max=2**32 - 1)] = 100_000,
    min_capacity: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 1,
    data_uri: Annotated[str, typer.Option(help="URI of the description of the pool.")] = "",
    activate: Annotated[bool, typer.Option(help="Activate the pool at once.")] = True,
    key: OwnerKey = "owner",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create a pool; the signing key becomes its owner."""
    terms = Terms(
        price_per_unit=parse_amount(price),
        penalty_per_unit=0 if penalty is None else parse_amount(penalty),
        stake_per_capacity=parse_amount(stake_per_capacity),
        audit_floor_bps=round(audit_floor * 10_000),
        look_bps=round(look_share * 10_000),
        judge_period=timedelta(seconds=judge_period),
        challenge_period=timedelta(seconds=challenge_period),
        dispute_period=timedelta(seconds=dispute_period),
        notice_period=timedelta(seconds=notice_period),
        max_nodes=max_nodes,
        min_capacity=min_capacity,
        verdict_fee=parse_amount(verdict_fee),
    )
    if penalty is None:
        terms = Terms.deterring(terms)
    roles = Roles(
        manager=resolve_address(context.obj, manager),
        orchestrator=resolve_address(context.obj, orchestrator),
        publisher=resolve_address(context.obj, publisher),
    )
    validators = [resolve_address(context.obj, name) for name in validator or []]
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        pool_id = await ledger.pools.create(domain_id=domain, roles=roles, terms=terms, data_uri=data_uri)
        for each in validators:
            await ledger.pools.add_validator(pool_id, each)
        if activate:
            await ledger.pools.activate(pool_id)
    status, cautions = "active" if activate else "pending", _cautions(terms, validators=len(validators))
    text = f"pool {pool_id} is {status}; `muster pool fund` deposits its escrow"
    change.show(text, pool=pool_id, status=status, cautions=cautions)
    for words in cautions:
        warn(words)


def _cautions(terms: Terms, *, validators: int) -> list[str]:
    """Returns warnings about terms that the ledger accepts, but with which the pool works badly."""
    found = []
    if terms.notice_period < DEFAULT_LEASE:
        found.append(
            f"the notice period of {terms.notice_period.total_seconds():.0f} s is shorter than the default lease of "
            f"{DEFAULT_LEASE.total_seconds():.0f} s: workers refuse leases that are longer than the notice "
            "period, so set `run_lease_s` lower"
        )
    if validators < 3:
        found.append("with fewer than three validators some disputes have no judge; their penalties are released")
    elif validators < LEAST_FOR_PROVISIONAL:
        found.append(
            "with fewer than four validators, one validator alone can overturn a disputed verdict; with four, a "
            "second validator must agree"
        )
    return found


async def activate(
    context: typer.Context,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Activate a pending pool, so that nodes can join it."""
    change, pool_id = Change(as_json=as_json, dry_run=dry_run), chosen_pool(context.obj, pool)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.activate(pool_id)
    change.show(f"pool {pool_id} is active", pool=pool_id, status="active")


async def end(
    context: typer.Context,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Close a pool permanently: no new members, no new work. Open work is still judged and paid."""
    pool_id = chosen_pool(context.obj, pool)
    question = f"end pool {pool_id} permanently? Its nodes get no more work. This can't be undone."
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.end(pool_id)
    text = f"pool {pool_id} has ended; `muster pool withdraw` withdraws the remaining escrow"
    change.show(text, pool=pool_id, status="ended")


async def fund(
    context: typer.Context,
    amount: Annotated[str, typer.Argument(help="Amount in MUST.")],
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deposit escrow, from which the pool pays. Any account may deposit."""
    pool_id = chosen_pool(context.obj, pool)
    change, deposit = Change(as_json=as_json, dry_run=dry_run), parse_amount(amount)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.fund(pool_id, deposit)
        escrow = await ledger.pools.escrow(pool_id)
    text = f"pool {pool_id} holds {format_amount(escrow.balance)} MUST, {format_amount(escrow.free)} of it free"
    change.show(text, pool=pool_id, deposit=Must(deposit), escrow=Must(escrow.balance), free=Must(escrow.free))


async def withdraw(
    context: typer.Context,
    amount: Annotated[
        str | None, typer.Argument(help="Amount in MUST; default: all that is free or announced.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="Address or key name of the receiver; default: the owner.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the announced withdrawal.")] = False,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    confirmed: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Announce a withdrawal of escrow that no open work needs; run again after the notice period to withdraw.

    Until then, nodes with leases are still paid. The escrow of a pending pool is paid out immediately.
    """
    if cancel and (amount is not None or to is not None):
        raise InvalidInput("--cancel excludes an amount and --to", hint="omit them")
    pool_id = chosen_pool(context.obj, pool)
    receiver = None if to is None else resolve_address(context.obj, to)
    asked = None if amount is None else parse_amount(amount)
    place = "the owner" if receiver is None else receiver
    question = "" if cancel else f"withdraw {'all free' if amount is None else f'{amount} MUST of'} escrow to {place}?"
    change = Change(as_json=as_json, question=question, confirmed=confirmed, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        if cancel:
            await _cancel_withdrawal(ledger, pool_id, change)
            return
        await _withdraw(ledger, pool_id, asked, receiver or ledger.address, change)


async def _cancel_withdrawal(ledger: Ledger, pool_id: int, change: Change) -> None:
    if (await ledger.pools.withdrawal(pool_id)).amount == 0:
        raise Conflict(f"pool {pool_id} has announced no withdrawal")
    await ledger.pools.announce_withdrawal(pool_id, 0)
    change.show("the announced withdrawal is cancelled", pool=pool_id, announced=Must(0))


async def _withdraw(ledger: Ledger, pool_id: int, asked: int | None, receiver: Address, change: Change) -> None:
    """Withdraws an announced amount that is ready; announces a withdrawal if there is none.

    A pending pool needs no announcement: the amount is withdrawn at once.
    """
    free, now = (await ledger.pools.escrow(pool_id)).free, await ledger.now()
    announced = await ledger.pools.withdrawal(pool_id)
    wanted = free if asked is None else asked
    if (announced.amount == 0 or now > announced.lapses_at) and wanted == 0:
        raise Conflict(
            f"pool {pool_id} has no free escrow", hint="open work reserves the remaining escrow until it is final"
        )
    if (await ledger.pools.get(pool_id)).status is PoolStatus.PENDING:
        await ledger.pools.withdraw_escrow(pool_id, wanted, receiver)
        change.show(f"withdrew {format_amount(wanted)} MUST", pool=pool_id, withdrawn=Must(wanted), receiver=receiver)
        return
    if announced.amount == 0 or now > announced.lapses_at:
        await ledger.pools.announce_withdrawal(pool_id, wanted)
        announced = await ledger.pools.withdrawal(pool_id)
        change.show(
            f"announced a withdrawal of {format_amount(wanted)} MUST: run this command again between "
            f"{_utc(announced.ready_at)} and {_utc(announced.lapses_at)}, or cancel the withdrawal with --cancel",
            pool=pool_id,
            announced=Must(wanted),
            ready_at=announced.ready_at,
            lapses_at=announced.lapses_at,
        )
        return
    if now < announced.ready_at:
        raise Conflict(
            f"the withdrawal of {format_amount(announced.amount)} MUST is ready at {_utc(announced.ready_at)}",
            hint="nodes that hold leases are paid until then; `--cancel` cancels the withdrawal",
        )
    most = min(free, announced.amount)
    if most == 0:
        raise Conflict(
            f"pool {pool_id} has no free escrow now", hint="open work reserves the remaining escrow until it is final"
        )
    taken = most if asked is None else asked
    if taken > most:
        raise InvalidInput(
            f"{format_amount(most)} MUST can be withdrawn now, not {format_amount(taken)}",
            hint="give at most this amount, or cancel the withdrawal and announce a larger one",
        )
    await ledger.pools.withdraw_escrow(pool_id, taken, receiver)
    change.show(f"withdrew {format_amount(taken)} MUST", pool=pool_id, withdrawn=Must(taken), receiver=receiver)


def _utc(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


@listing(watch=True)
async def show(context: typer.Context, pool: PoolOption = None, as_json: JsonOption = False) -> None:
    """Show a pool: its owner, terms, escrow and members."""
    pool_id = chosen_pool(context.obj, pool)
    async with open_ledger(context.obj) as ledger:
        entry, terms = await ledger.pools.get(pool_id), await ledger.pools.terms(pool_id)
        escrow, totals = await ledger.pools.escrow(pool_id), await ledger.work.totals(pool_id)
        pending = await ledger.pools.pending_terms(pool_id)
        announced, now = await ledger.pools.withdrawal(pool_id), await ledger.now()
        validators = await ledger.pools.validators(pool_id)
    fields: dict[str, object] = {
        "pool": pool_id,
        "status": entry.status.name.lower(),
        "owner": entry.owner,
        "domain": entry.domain_id,
        "members": f"{entry.member_count} of at most {terms.max_nodes}",
        "escrow": Must(escrow.balance),
        "reserved_for_open_work": Must(escrow.reserved),
        "earned_so_far": Must(totals.accrued),
        "claimed_so_far": Must(totals.paid),
        "price_per_unit": Must(terms.price_per_unit),
        "penalty_per_unit": Must(terms.penalty_per_unit),
        "stake_per_capacity": Must(terms.stake_per_capacity),
        "audit_floor": f"{terms.audit_floor_bps / 100:g} %",
        "validators": len(validators),
        "verdict_fee": Must(terms.verdict_fee),
        "paid_second_looks": f"{terms.look_bps / 100:g} %",
        "judged_within": terms.judge_period,
        "disputable_for": terms.challenge_period,
        "second_verdict_within": terms.dispute_period,
        "notice_of_new_terms": terms.notice_period,
        "data_uri": entry.data_uri or None,
    }
    if pending is not None:
        fields["new_terms_from"] = pending[1]
    if leaving := announced.takes(now):
        fields["announced_withdrawal"] = Must(leaving)
        fields["withdrawal_ready_at"] = announced.ready_at
        fields["withdrawal_lapses_at"] = announced.lapses_at
    show_fields(fields, as_json=as_json)


@listing()
async def economics(
    context: typer.Context,
    units: Annotated[int, typer.Option(min=1, help="Work units of a typical submission.")] = 4096,
    max_units: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum work units of its lease, which determine the penalty; default: --units."),
    ] = None,
    open_work: Annotated[int, typer.Option(min=1, help="Number of a node's submissions without a verdict.")] = 8,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Rows (samples) of a typical submission.")] = 64,
    corrupt: Annotated[int, typer.Option(min=1, help="Maximum number of colluding validators.")] = 2,
    look_cost: Annotated[str, typer.Option(help="Cost to a validator of a verdict or second look, in MUST.")] = "0",
    lease: Annotated[float, typer.Option(min=1, help="Seconds for which a slot is leased.")] = 600.0,
    slot_time: Annotated[float, typer.Option(min=0.1, help="Seconds that a typical node takes for a slot.")] = 150.0,
    found_after: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds until a submission whose file is missing no longer counts for its step."),
    ] = 5.0,
    delivery_least: Annotated[int, typer.Option(min=1, help="The orchestrator's setting `run_delivery_least`.")] = 5,
    throttle_pause: Annotated[
        float, typer.Option(min=1, help="Seconds; the orchestrator's setting `run_throttle_pause_s`.")
    ] = 600.0,
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a pool pays for work and what attacks cost, computed from its terms.

    Shows whether the stake deters forgery, the audited share of rows by a node's number of clean verdicts, and the
    costs and earnings of verdicts. The attacks are forged rows, one poisoned row, corrupt validators, delayed steps and
    Sybil nodes.
    """
    rules = DeliveryRules(
        found_after=timedelta(seconds=found_after),
        lease=timedelta(seconds=lease),
        typical=timedelta(seconds=slot_time),
        least=delivery_least,
        pause=timedelta(seconds=throttle_pause),
        providers_per_step=3,
    )
    cost = parse_amount(look_cost)
    pool_id = chosen_pool(context.obj, pool)
    async with open_ledger(context.obj) as ledger:
        terms, escrow = await ledger.pools.terms(pool_id), await ledger.pools.escrow(pool_id)
        validators = len(await ledger.pools.validators(pool_id))
    found = explain_economics(terms, escrow, units=units, max_units=max_units, open_work=open_work)
    by_age, forged = audit_stages(found), forgeries(found, rows=rows)
    costs = attacks(
        terms,
        found,
        rules,
        rows=rows,
        validators=validators,
        most_corrupt=min(corrupt, validators),
        look_cost=cost,
    )
    if as_json:
        show_json({**found.raw(), "audited_by_age": by_age, "row_forgeries": forged, **costs.raw()})
        return
    show_fields(found.lines())
    show_audits(by_age, forged)
    show_attacks(costs)


async def terms(
    context: typer.Context,
    price: Annotated[str | None, typer.Option(help="MUST for one work unit.")] = None,
    penalty: Penalty = None,
    stake_per_capacity: Annotated[str | None, typer.Option(help="MUST of stake that a unit of capacity binds.")] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, max=2**32 - 1)] = None,
    min_capacity: Annotated[int | None, typer.Option(min=0, max=2**32 - 1)] = None,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Propose new terms; in an active pool they take effect after the notice period."""
    pool_id = chosen_pool(context.obj, pool)
    change = Change(as_json=as_json, dry_run=dry_run)
    async with open_ledger(context.obj, key, change) as ledger:
        now = await ledger.pools.terms(pool_id)
        new = replace(
            now,
            price_per_unit=now.price_per_unit if price is None else parse_amount(price),
            penalty_per_unit=now.penalty_per_unit if penalty is None else parse_amount(penalty),
            stake_per_capacity=(
                now.stake_per_capacity if stake_per_capacity is None else parse_amount(stake_per_capacity)
            ),
            max_nodes=max_nodes or now.max_nodes,
            min_capacity=now.min_capacity if min_capacity is None else min_capacity,
        )
        if new == now:
            raise InvalidInput("no term would change", hint="give an option with a new value, for example --price")
        if penalty is None:
            new = Terms.deterring(new)
        await ledger.pools.set_terms(pool_id, new)
        pending = await ledger.pools.pending_terms(pool_id)
    change.show(
        "the new terms apply from " + ("now on" if pending is None else f"{_utc(pending[1])} on"),
        pool=pool_id,
        price_per_unit=Must(new.price_per_unit),
        penalty_per_unit=Must(new.penalty_per_unit),
        stake_per_capacity=Must(new.stake_per_capacity),
        max_nodes=new.max_nodes,
        min_capacity=new.min_capacity,
        applies_from=None if pending is None else pending[1],
    )
