"""`muster pool`: make a pool, fund it, give out its roles, decide who belongs to it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.connection import (
    ManagerKey,
    OrchestratorKey,
    OwnerKey,
    PoolOption,
    chosen_pool,
    open_ledger,
    run,
)
from cli.documents import write_document
from cli.keys import open_key, resolve_address
from cli.output import JsonOption, say, show_fields, show_table, warn
from ledger.amounts import format_amount, parse_amount
from ledger.client.pools import Role, Roles, Terms
from ledger.economics import explain_economics
from protocol.errors import InvalidInput
from protocol.invites import Invite
from protocol.wire.invites import SignedInvite

app = typer.Typer(no_args_is_help=True, help="Make and run a pool.")


class RoleName(StrEnum):
    """The roles that are one key each."""

    MANAGER = "manager"
    ORCHESTRATOR = "orchestrator"
    PUBLISHER = "publisher"


NodeName = Annotated[str, typer.Argument(help="Address or key name of the node.")]
Reason = Annotated[str, typer.Option(help="Why; stands on the ledger for everybody to read.")]
Price = Annotated[str, typer.Option(help="MUST for one work unit (one token).")]
Penalty = Annotated[
    str | None, typer.Option(help="MUST lost for one forged unit; default: the least that deters at the audit floor.")
]
Seconds = Annotated[int, typer.Option(min=1)]


@app.command()
def create(
    context: typer.Context,
    domain: Annotated[int, typer.Option(min=1, help="The domain it belongs to.")] = 1,
    manager: Annotated[str, typer.Option(help="Address or key name.")] = "manager",
    orchestrator: Annotated[str, typer.Option(help="Address or key name.")] = "orchestrator",
    publisher: Annotated[str, typer.Option(help="Address or key name.")] = "publisher",
    validator: Annotated[list[str] | None, typer.Option(help="Address or key name; may be repeated.")] = None,
    price: Price = "0.0001",
    penalty: Penalty = None,
    stake_per_capacity: Annotated[str, typer.Option(help="MUST that one unit of capacity binds.")] = "10",
    audit_floor: Annotated[float, typer.Option(min=0.0001, max=1, help="Least share of work that is audited.")] = 0.1,
    judge_period: Seconds = 3600,
    challenge_period: Seconds = 3600,
    dispute_period: Seconds = 7200,
    notice_period: Seconds = 3600,
    max_nodes: Annotated[int, typer.Option(min=1, max=2**32 - 1)] = 100_000,
    min_capacity: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 1,
    data_uri: Annotated[str, typer.Option(help="Where the pool is described.")] = "",
    activate: Annotated[bool, typer.Option(help="Open it at once.")] = True,
    key: OwnerKey = "owner",
) -> None:
    """Create a pool that you own."""
    terms = Terms(
        price_per_unit=parse_amount(price),
        penalty_per_unit=0 if penalty is None else parse_amount(penalty),
        stake_per_capacity=parse_amount(stake_per_capacity),
        audit_floor_bps=round(audit_floor * 10_000),
        judge_period=timedelta(seconds=judge_period),
        challenge_period=timedelta(seconds=challenge_period),
        dispute_period=timedelta(seconds=dispute_period),
        notice_period=timedelta(seconds=notice_period),
        max_nodes=max_nodes,
        min_capacity=min_capacity,
    )
    if penalty is None:
        terms = Terms.deterring(terms)
    roles = Roles(
        manager=resolve_address(context.obj, manager),
        orchestrator=resolve_address(context.obj, orchestrator),
        publisher=resolve_address(context.obj, publisher),
    )
    validators = [resolve_address(context.obj, name) for name in validator or []]

    async def command() -> None:
        async with open_ledger(context.obj, key) as ledger:
            pool_id = await ledger.pools.create(domain_id=domain, roles=roles, terms=terms, data_uri=data_uri)
            for each in validators:
                await ledger.pools.add_validator(pool_id, each)
            if activate:
                await ledger.pools.activate(pool_id)
        say(f"pool {pool_id} is {'active' if activate else 'pending'}; `muster pool fund` gives it something to pay")
        if len(validators) < 3:
            warn("with fewer than three validators not every dispute can be judged; then penalties are released")

    run(command())


@app.command()
def activate(context: typer.Context, pool: PoolOption = None, key: OwnerKey = "owner") -> None:
    """Open a pending pool."""

    async def command() -> None:
        async with open_ledger(context.obj, key) as ledger:
            await ledger.pools.activate(chosen_pool(context.obj, pool))
        say(f"pool {chosen_pool(context.obj, pool)} is active")

    run(command())


@app.command()
def end(context: typer.Context, pool: PoolOption = None, key: OwnerKey = "owner") -> None:
    """End a pool for good: no new members, no new work; what is open is judged and paid."""

    async def command() -> None:
        async with open_ledger(context.obj, key) as ledger:
            await ledger.pools.end(chosen_pool(context.obj, pool))
        say(f"pool {chosen_pool(context.obj, pool)} has ended; `muster pool withdraw` takes out what is left")

    run(command())


@app.command()
def fund(
    context: typer.Context,
    amount: Annotated[str, typer.Argument(help="MUST.")],
    pool: PoolOption = None,
    key: OwnerKey = "owner",
) -> None:
    """Add to what the pool can pay; anybody may."""

    async def command() -> None:
        pool_id = chosen_pool(context.obj, pool)
        async with open_ledger(context.obj, key) as ledger:
            await ledger.pools.fund(pool_id, parse_amount(amount))
            escrow = await ledger.pools.escrow(pool_id)
        say(f"pool {pool_id} holds {format_amount(escrow.balance)} MUST, {format_amount(escrow.free)} of it free")

    run(command())


@app.command()
def withdraw(
    context: typer.Context,
    amount: Annotated[str | None, typer.Argument(help="MUST; default: all that is free.")] = None,
    to: Annotated[str | None, typer.Option(help="Address or key name; default: the owner.")] = None,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
) -> None:
    """Take out escrow that no open work needs."""

    async def command() -> None:
        pool_id = chosen_pool(context.obj, pool)
        receiver = None if to is None else resolve_address(context.obj, to)
        async with open_ledger(context.obj, key) as ledger:
            taken = (await ledger.pools.escrow(pool_id)).free if amount is None else parse_amount(amount)
            await ledger.pools.withdraw_escrow(pool_id, taken, receiver or ledger.address)
        say(f"withdrew {format_amount(taken)} MUST")

    run(command())


@app.command()
def show(context: typer.Context, pool: PoolOption = None, as_json: JsonOption = False) -> None:
    """Show a pool: its owner, terms, escrow and members."""

    async def command() -> None:
        pool_id = chosen_pool(context.obj, pool)
        async with open_ledger(context.obj) as ledger:
            entry, terms = await ledger.pools.get(pool_id), await ledger.pools.terms(pool_id)
            escrow, totals = await ledger.pools.escrow(pool_id), await ledger.work.totals(pool_id)
            pending = await ledger.pools.pending_terms(pool_id)
        money = str if as_json else _must
        fields: dict[str, object] = {
            "pool": pool_id,
            "status": entry.status.name.lower(),
            "owner": entry.owner,
            "domain": entry.domain_id,
            "members": f"{entry.member_count} of at most {terms.max_nodes}",
            "escrow": money(escrow.balance),
            "reserved_for_open_work": money(escrow.reserved),
            "earned_so_far": money(totals.accrued),
            "claimed_so_far": money(totals.paid),
            "price_per_unit": money(terms.price_per_unit),
            "penalty_per_unit": money(terms.penalty_per_unit),
            "stake_per_capacity": money(terms.stake_per_capacity),
            "audit_floor": f"{terms.audit_floor_bps / 100:g} %",
            "judged_within": terms.judge_period,
            "disputable_for": terms.challenge_period,
            "second_verdict_within": terms.dispute_period,
            "notice_of_new_terms": terms.notice_period,
            "data_uri": entry.data_uri or None,
        }
        if pending is not None:
            fields["new_terms_from"] = pending[1]
        show_fields(fields, as_json=as_json)

    run(command())


@app.command()
def economics(
    context: typer.Context,
    units: Annotated[int, typer.Option(min=1, help="Work units of a typical submission.")] = 4096,
    open_work: Annotated[int, typer.Option(min=1, help="Submissions of one node that wait for their verdict.")] = 8,
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a work unit pays, and why forging one does not: the stake inequality with the pool's own numbers."""

    async def command() -> None:
        pool_id = chosen_pool(context.obj, pool)
        async with open_ledger(context.obj) as ledger:
            terms, escrow = await ledger.pools.terms(pool_id), await ledger.pools.escrow(pool_id)
        found = explain_economics(terms, escrow, units=units, open_work=open_work)
        show_fields(found.raw() if as_json else found.lines(), as_json=as_json)

    run(command())


@app.command()
def terms(
    context: typer.Context,
    price: Annotated[str | None, typer.Option(help="MUST for one work unit.")] = None,
    penalty: Penalty = None,
    stake_per_capacity: Annotated[str | None, typer.Option(help="MUST that one unit of capacity binds.")] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, max=2**32 - 1)] = None,
    min_capacity: Annotated[int | None, typer.Option(min=0, max=2**32 - 1)] = None,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
) -> None:
    """Propose new terms; in an active pool they bind nobody before the notice period is over."""

    async def command() -> None:
        pool_id = chosen_pool(context.obj, pool)
        async with open_ledger(context.obj, key) as ledger:
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
                raise InvalidInput("these are the terms in force", hint="name what is to change, for example --price")
            if penalty is None:
                new = Terms.deterring(new)
            await ledger.pools.set_terms(pool_id, new)
            pending = await ledger.pools.pending_terms(pool_id)
        say("the new terms bind from " + ("now on" if pending is None else f"{pending[1]:%Y-%m-%d %H:%M:%S} UTC on"))

    run(command())


@app.command()
def roles(
    context: typer.Context,
    set_role: Annotated[RoleName | None, typer.Option("--set", help="The role to give to another key.")] = None,
    to: Annotated[str | None, typer.Option(help="Address or key name of the new holder.")] = None,
    grace: Annotated[int, typer.Option(min=0, max=604_800, help="Seconds that the former key still counts.")] = 0,
    add_validator: Annotated[str | None, typer.Option(help="Address or key name.")] = None,
    remove_validator: Annotated[str | None, typer.Option(help="Address or key name.")] = None,
    pool: PoolOption = None,
    key: OwnerKey = "owner",
    as_json: JsonOption = False,
) -> None:
    """Show who holds which role; rotate a role's key; add and remove validators."""

    async def command() -> None:
        pool_id = chosen_pool(context.obj, pool)
        if set_role is not None and to is None:
            raise InvalidInput("--set needs --to", hint="muster pool roles --set manager --to ADDRESS")
        changes = bool(set_role or add_validator or remove_validator)
        async with open_ledger(context.obj, key if changes else None) as ledger:
            until = await ledger.now() + timedelta(seconds=grace)
            if set_role is not None and to is not None:
                holder = resolve_address(context.obj, to)
                await ledger.pools.set_role(pool_id, Role[set_role.name], holder, previous_until=until)
            if add_validator is not None:
                await ledger.pools.add_validator(pool_id, resolve_address(context.obj, add_validator))
            if remove_validator is not None:
                await ledger.pools.remove_validator(
                    pool_id, resolve_address(context.obj, remove_validator), until=until
                )
            seats = {role: await ledger.pools.seat(pool_id, role) for role in Role}
            owner = (await ledger.pools.get(pool_id)).owner
            validators = await ledger.validators(pool_id)
        rows: list[tuple[object, ...]] = [("owner", owner, None, None)]
        for role, seat in seats.items():
            former = seat.previous_until > datetime.now(UTC)
            rows.append(
                (
                    role.name.lower(),
                    seat.holder,
                    seat.previous if former else None,
                    seat.previous_until if former else None,
                )
            )
        rows += [("validator", each, None, None) for each in validators]
        show_table(("role", "key", "former_key", "counts_until"), rows, as_json=as_json, empty="")

    run(command())


@app.command()
def transfer(
    context: typer.Context,
    to: Annotated[str, typer.Argument(help="Address or key name of the next owner, who must accept.")],
    pool: PoolOption = None,
    key: OwnerKey = "owner",
) -> None:
    """Offer the pool to another owner."""

    async def command() -> None:
        new_owner = resolve_address(context.obj, to)
        async with open_ledger(context.obj, key) as ledger:
            await ledger.pools.transfer(chosen_pool(context.obj, pool), new_owner)
        say(f"offered to {new_owner}, who takes it with `muster pool accept`")

    run(command())


@app.command()
def accept(context: typer.Context, pool: PoolOption = None, key: OwnerKey = "owner") -> None:
    """Take over a pool that was offered to you."""

    async def command() -> None:
        async with open_ledger(context.obj, key) as ledger:
            await ledger.pools.accept(chosen_pool(context.obj, pool))
            say(f"pool {chosen_pool(context.obj, pool)} is owned by {ledger.address}")

    run(command())


@app.command()
def invite(
    context: typer.Context,
    node: NodeName,
    url: Annotated[str, typer.Option(help="Where the orchestrator is reached.")],
    valid_for: Annotated[int, typer.Option(min=1, help="Seconds until it expires.")] = 3600,
    out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    pool: PoolOption = None,
    key: OrchestratorKey = "orchestrator",
) -> None:
    """Sign an invite for one node: single use, with an expiry, worthless to anybody else."""

    async def command() -> None:
        signer, pool_id = open_key(context.obj, key), chosen_pool(context.obj, pool)
        async with open_ledger(context.obj) as ledger:
            entry = await ledger.pools.get(pool_id)
            terms = Invite(
                pool_id=pool_id,
                domain_id=entry.domain_id,
                node=resolve_address(context.obj, node),
                nonce=int.from_bytes(secrets.token_bytes(16)),
                expiry=int((await ledger.now()).timestamp()) + valid_for,
                url=url,
            )
            domain = ledger.pools.domain
            signed = SignedInvite.of(terms, domain=domain, signature=terms.sign(signer, domain))
            if not await ledger.pools.is_orchestrator(pool_id, signer.address):
                warn(f"{signer.address} is not the orchestrator of pool {pool_id}: nobody can redeem this invite")
        write_document(out, signed)

    run(command())


@app.command(name="cancel-invite")
def cancel_invite(
    context: typer.Context,
    nonce: Annotated[int, typer.Argument(min=0, help="From the invite.")],
    pool: PoolOption = None,
    key: ManagerKey = "manager",
) -> None:
    """Make an invite worthless that nobody has redeemed."""

    async def command() -> None:
        async with open_ledger(context.obj, key) as ledger:
            await ledger.pools.cancel_invite(chosen_pool(context.obj, pool), nonce)
        say("cancelled")

    run(command())


@app.command()
def evict(
    context: typer.Context,
    node: NodeName,
    reason: Reason,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
) -> None:
    """Take a node out of the pool for cause; it may be invited again."""

    async def command() -> None:
        which = resolve_address(context.obj, node)
        async with open_ledger(context.obj, key) as ledger:
            await ledger.pools.evict(chosen_pool(context.obj, pool), which, reason)
        say(f"{which} is evicted")

    run(command())


def _must(amount: int) -> str:
    return f"{format_amount(amount)} MUST"
