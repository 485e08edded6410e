"""`muster pool progress`, `rollouts`, `deliveries`, `demand` and `publish`: show and control a run."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Annotated

import typer

from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_fields, show_json, show_table
from cli.output.quantities import counted, moment
from cli.output.tables import Column, Columns
from cli.output.values import Ago, Size
from cli.pool.connection import Manager, Where, open_orchestrator
from protocol.identifiers import digest
from protocol.verdicts import Outcome, reason_name
from protocol.wire.listings import RolloutItem
from protocol.wire.runs import Demand, NewCheckpoint, RunView, StepView
from protocol.wire.slots import Deliveries, LeaseView

STEPS = Columns.of("step", "demand", "accepted", "pending", "leased", "rejected", "needs", "state")
ROLLOUTS = Columns.of(
    "work",
    "node",
    Column("step", drop=4),
    Column("slot", drop=5),
    Column("version", drop=6),
    Column("groups", drop=3),
    Column("samples", drop=7),
    Column("tokens", drop=2),
    Column("reward", drop=1),
    Column("size", drop=8),
    Column("verdict", least=16),
)
LEASES = Columns.of("step", "slot", "version", "groups", Column("leased", drop=1), "expires", "state")


class Wanted(StrEnum):
    """Outcomes of rollout files by which `muster pool rollouts` filters."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    PENDING = "pending"
    ALL = "all"


@listing(watch=True)
async def progress(
    context: typer.Context, *, where: Where = None, manager: Manager = None, as_json: JsonOption = False
) -> None:
    """Show the policy's version, and the groups that each step has and still needs."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        view = await client.run()
    if as_json:
        show_json(view)
        return
    show_fields(_run(view))
    show_table(STEPS, [_step(step) for step in view.steps], empty="no step has begun")


@listing(watch=True)
async def rollouts(
    context: typer.Context,
    *,
    step: Annotated[int | None, typer.Option(min=0, help="Only files of this step.")] = None,
    status: Annotated[Wanted, typer.Option(help="Only files with this outcome.")] = Wanted.ALL,
    node: Annotated[str | None, typer.Option(help="Only files of this node (address or key name).")] = None,
    newest: Annotated[
        bool, typer.Option("--newest", help="Show the newest files first, instead of the oldest.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of files.")] = 200,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """List submitted files with node, step, reported metrics and outcome."""
    only_node = None if node is None else resolve_address(context.obj, node)
    found: deque[RolloutItem] = deque(maxlen=limit)
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        async for item in client.rollouts(step=step, status=status.value):
            if only_node is not None and item.node != only_node:
                continue
            found.append(item)
            if len(found) == limit and not newest:
                note(f"these are the oldest {limit} files; --limit shows more, --newest begins with the newest")
                break
    if newest:
        found.reverse()
    if as_json:
        show_json(list(found))
        return
    show_table(ROLLOUTS, [_rollout(item) for item in found], empty="nothing was submitted yet")


@listing(watch=True)
async def deliveries(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Address or key name of the node.")],
    *,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Show the node's share of delivered leases, and the outcome of each lease."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        found = await client.leases(resolve_address(context.obj, name))
    if as_json:
        show_json(found)
        return
    show_fields(_deliveries(found))
    show_table(LEASES, [_lease(lease) for lease in found.leases], empty="the node has leased no slot")


async def demand(
    context: typer.Context,
    step: Annotated[int, typer.Argument(min=0, help="Number of the step.")],
    groups: Annotated[int, typer.Argument(min=0, help="Total number of groups that the step needs.")] = 0,
    *,
    close: Annotated[bool, typer.Option("--close", help="Close the step and all earlier ones.")] = False,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Set the total demand of a step in groups, or close the step. A trainer does this automatically."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        view = await client.put_demand(Demand(step=step, groups=groups, closed=close))
    if as_json:
        show_json(view)
    elif view.closed:
        say(f"step {view.step} is closed with {counted(view.accepted, 'accepted group')}")
    else:
        say(f"step {view.step} needs {counted(view.demand, 'group')}, {view.need} missing")


async def publish(
    context: typer.Context,
    version: Annotated[int, typer.Argument(min=0, help="Number of the version.")],
    version_digest: Annotated[str, typer.Argument(metavar="DIGEST", help="Version digest, as on the ledger.")],
    *,
    attempt: Annotated[int, typer.Option(min=0, help="Number of the publishing attempt.")] = 0,
    units_per_group: Annotated[int, typer.Option(min=1, help="Maximum work units (tokens) of a group.")],
    relay: Annotated[list[str] | None, typer.Option(help="URL of a relay; may be repeated.")] = None,
    arithmetic: Annotated[
        list[str] | None, typer.Option(help="Engine and data type in its recipe, such as vllm/bfloat16; repeatable.")
    ] = None,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the orchestrator to lease slots for an announced version.

    A trainer does this automatically.
    """
    new = NewCheckpoint(
        version=version,
        attempt=attempt,
        digest=digest(version_digest),
        units_per_group=units_per_group,
        relays=tuple(relay or ()),
        arithmetic=tuple(arithmetic or ()),
    )
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        adopted = await client.put_checkpoint(new)
    if as_json:
        show_json(adopted)
    else:
        say(f"slots are leased for version {adopted.version} now, announced in block {adopted.block}")


def _run(view: RunView) -> dict[str, object]:
    checkpoint = view.checkpoint
    return {
        "run": view.run,
        "version": "none yet" if checkpoint is None else f"{checkpoint.version} ({checkpoint.digest})",
        "fetched from": None if checkpoint is None else checkpoint.relays,
        "tokens per group": view.units_per_group,
        "paid for": None if checkpoint is None else checkpoint.arithmetic or "what its recipe names",
        "no validator verifies": None if checkpoint is None else checkpoint.unverifiable,
        "async level": view.async_level,
        "waiting for the relayer": view.queued_submissions,
        "slots": view.paused or "leased",
    }


def _step(step: StepView) -> tuple[object, ...]:
    state = (
        "closed"
        if step.closed
        else f"raised {step.rounds} time{'s' if step.rounds > 1 else ''}"
        if step.rounds
        else "open"
    )
    return (step.step, step.demand, step.accepted, step.pending, step.leased, step.rejected, step.need, state)


def _rollout(item: RolloutItem) -> tuple[object, ...]:
    figures = item.figures
    return (
        item.key,
        item.node,
        item.step,
        item.index,
        item.version,
        item.groups,
        figures.get("samples"),
        item.units,
        None if "reward" not in figures else f"{figures['reward']:.3f}",
        None if item.size is None else Size(item.size),
        _verdict(item),
    )


def _verdict(item: RolloutItem) -> str:
    if item.outcome is None:
        return item.status.value
    words = f"{Outcome(item.outcome).name.lower()} ({item.status.value})"
    if item.outcome is Outcome.ACCEPTED:
        return words
    name = reason_name(item.reason)
    return f"{words}: {f'reason {name}' if name.isdigit() else name.replace('-', ' ')}"


def _deliveries(found: Deliveries) -> dict[str, object]:
    until = found.resting_until_ms
    return {
        "delivered": f"{found.delivered} of its newest {found.delivered + found.undelivered} leases",
        "wanted share": f"{found.threshold:.0%}",
        "gets leases": "yes" if until is None else f"not before {moment(until):%Y-%m-%d %H:%M:%S} UTC",
    }


def _lease(lease: LeaseView) -> tuple[object, ...]:
    leased, expires = Ago(lease.granted_at_ms), moment(lease.expires_at_ms)
    return (lease.step, lease.index, lease.version, lease.groups, leased, expires, lease.state.value)
