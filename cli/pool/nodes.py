"""`muster pool nodes` and related commands: list, show, restart, drain and ban nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from cli.connection import ManagerKey, PoolOption, chosen_pool, open_ledger
from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_fields, show_json, show_table
from cli.output.quantities import format_size, moment
from cli.output.tables import Column, Columns
from cli.output.values import Ago, Named
from cli.pool.bans import BanReason, check_ban_reason
from cli.pool.connection import Manager, Where, find_task, open_orchestrator
from cli.transactions.changes import Change, DryRunOption
from protocol.clients import OrchestratorClient
from protocol.identifiers import Address
from protocol.wire.assignments import AssignmentState
from protocol.wire.nodes import Hardware, NodeState
from protocol.wire.pool import HistoryEntry, NodeMetrics, NodeView

NodeName = Annotated[str, typer.Argument(help="Address or key name of the node.")]
Reason = Annotated[str, typer.Option(help="Reason, for the node's history.")]
OnLedger = Annotated[
    bool, typer.Option("--on-ledger", help="Send the change directly to the ledger, with the manager's key.")
]
HISTORY_SHOWN = 20
NODES = Columns.of(
    Column("node", least=11),
    "state",
    Column("since", drop=2),
    Column("seen", drop=3),
    Column("runs", least=12),
    Column("hardware", drop=4, least=16),
    Column("why", drop=1, least=12),
)
HISTORY = Columns.of(
    "time", Column("before", drop=1), "after", Column("by", drop=2, least=8), Column("cause", least=16)
)


@listing(watch=True)
async def nodes(
    context: typer.Context,
    *,
    state: Annotated[NodeState | None, typer.Option(help="Only nodes in this state.")] = None,
    task: Annotated[str | None, typer.Option(help="Only nodes that run this task (id or name).")] = None,
    label: Annotated[str | None, typer.Option(help="Only nodes with this label, as name=value.")] = None,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """List the pool's nodes."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        chosen = (await find_task(client, task)).id if task is not None else None
        found = [node async for node in client.nodes(state=state, task=chosen, label=label)]
    if as_json:
        show_json(found)
        return
    show_table(NODES, [_row(node) for node in found], empty="no node is known yet")


@listing(watch=True)
async def node(
    context: typer.Context,
    name: NodeName,
    *,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Show one node: state and reason, assignment, hardware, metrics and history."""
    which = resolve_address(context.obj, name)
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        view = await client.node(which)
        metrics = await client.metrics(which)
        history = await client.history(which, limit=HISTORY_SHOWN)
    if as_json:
        show_json({"node": view, "metrics": metrics, "history": history})
        return
    show_fields(_fields(view, metrics))
    show_table(
        HISTORY,
        [_change(entry) for entry in history],
        empty="no events yet",
    )


async def restart(
    context: typer.Context,
    name: NodeName,
    reason: Reason = "",
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Restart a node's task in a new container."""
    await _tell(context, name, where, manager, as_json, lambda client, which: client.restart(which, reason=reason))


async def drain(
    context: typer.Context,
    name: NodeName,
    reason: Reason = "",
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Let a node finish its task, and assign no other task to it until `resume`."""
    await _tell(context, name, where, manager, as_json, lambda client, which: client.drain(which, reason=reason))


async def resume(
    context: typer.Context,
    name: NodeName,
    reason: Reason = "",
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """End a node's drain, so that it gets tasks again."""
    await _tell(context, name, where, manager, as_json, lambda client, which: client.resume(which, reason=reason))


async def ban(
    context: typer.Context,
    name: NodeName,
    *,
    reason: BanReason,
    on_ledger: OnLedger = False,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
    where: Where = None,
    manager: Manager = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Ban a node from the pool, until `unban`."""
    reason = check_ban_reason(reason)
    change = Change(as_json=as_json, dry_run=dry_run)
    which = resolve_address(context.obj, name)
    if not on_ledger:
        change.plan_request(f"ban {which}")
        await _tell(context, name, where, manager, as_json, lambda client, which: client.ban(which, reason=reason))
        return
    pool_id = chosen_pool(context.obj, pool)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.ban(pool_id, which, reason)
    change.show(f"{which} is banned", pool=pool_id, node=which, banned=True)


async def unban(
    context: typer.Context,
    name: NodeName,
    *,
    reason: Reason = "",
    on_ledger: OnLedger = False,
    pool: PoolOption = None,
    key: ManagerKey = "manager",
    where: Where = None,
    manager: Manager = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Lift a node's ban, so that the pool may invite the node again."""
    change = Change(as_json=as_json, dry_run=dry_run)
    which = resolve_address(context.obj, name)
    if not on_ledger:
        change.plan_request(f"lift the ban of {which}")
        await _tell(context, name, where, manager, as_json, lambda client, which: client.unban(which, reason=reason))
        return
    pool_id = chosen_pool(context.obj, pool)
    async with open_ledger(context.obj, key, change) as ledger:
        await ledger.pools.unban(pool_id, which)
    change.show(f"{which} may be invited again", pool=pool_id, node=which, banned=False)


async def _tell(
    context: typer.Context,
    name: str,
    where: str | None,
    manager: str | None,
    as_json: bool,
    act: Callable[[OrchestratorClient, Address], Awaitable[NodeView]],
) -> None:
    which = resolve_address(context.obj, name)
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        view = await act(client, which)
    if as_json:
        show_json(view)
        return
    say(f"{view.address} is {view.state.value}")
    if view.reason:
        note(view.reason)


def _row(view: NodeView) -> tuple[object, ...]:
    return (
        Named(view.address, view.labels.get("name")),
        view.state,
        Ago(view.since_ms),
        Ago(view.last_seen_ms),
        _runs(view),
        _hardware(view.hardware),
        "; ".join(words for words in (view.reason, failure_of(view)) if words) or None,
    )


def _runs(view: NodeView) -> str:
    held = view.assignment
    if held is None or held.ended_at_ms is not None:
        return "-"
    return f"{held.task_name} ({held.state.value})"


def failure_of(view: NodeView) -> str:
    """Returns the node's report of its failed task, with the last lines of the task's output.

    A task has failed if the node has given up on it, or has not restarted it yet. Returns "" if the task has not
    failed.
    """
    held = view.assignment
    if held is None or held.state not in {AssignmentState.FAILED, AssignmentState.RESTARTING}:
        return ""
    return f"{held.task_name} ({held.state.value}): {held.detail}" if held.detail else ""


def _hardware(hardware: Hardware | None) -> str:
    if hardware is None:
        return "-"
    gpus = ", ".join(sorted({f"{_count(hardware, gpu.model)} x {gpu.model}" for gpu in hardware.gpus}))
    return f"{hardware.cpu_cores} cores, {format_size(hardware.memory_bytes)}" + (f", {gpus}" if gpus else "")


def _count(hardware: Hardware, model: str) -> int:
    return sum(gpu.model == model for gpu in hardware.gpus)


def _fields(view: NodeView, metrics: NodeMetrics) -> dict[str, object]:
    held = view.assignment
    return {
        "node": view.address,
        "state": view.state,
        "since": moment(view.since_ms),
        "why": view.reason or None,
        "member": view.member,
        "provider": view.provider,
        "seen": moment(view.last_seen_ms),
        "version": view.worker_version,
        "hardware": _hardware(view.hardware),
        "labels": [f"{name}={value}" for name, value in view.labels.items()],
        "runs": _runs(view),
        "assignment": None if held is None else held.id,
        "detail": (held.detail or None) if held is not None else None,
        "restarts": None if held is None else held.restarts,
        "metrics": [f"{name} {value:g}" for name, value in sorted(metrics.metrics.items())],
    }


def _change(entry: HistoryEntry) -> tuple[object, ...]:
    return (moment(entry.time_ms), entry.before, entry.after, entry.actor, entry.cause)
