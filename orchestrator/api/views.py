"""Converts rows of the Redis store into the models that the API returns."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.dependencies import Dependencies
from orchestrator.store.nodes import NodeRow
from protocol.identifiers import address
from protocol.wire.pool import GroupMember, GroupView, NodeView


async def node_views(
    dependencies: Dependencies, rows: Sequence[NodeRow], *, metric: str | None = None
) -> list[NodeView]:
    """Returns nodes with their current or last assignment.

    Args:
        dependencies: Dependencies of the orchestrator.
        rows: Rows of the nodes.
        metric: Name of a gauge of the last heartbeat to include; None to include none.
    """
    names = [row.assignment_id or row.last_assignment_id for row in rows]
    assignments = await dependencies.assignments.views([name for name in names if name])
    return [
        NodeView(
            address=row.address,
            state=row.state,
            since_ms=row.since_ms,
            reason=row.reason,
            member=row.member,
            provider=address(row.provider) if row.provider else None,
            worker_version=row.worker_version,
            hardware=row.machine.hardware,
            software=row.machine.software,
            labels=dict(row.machine.labels),
            last_seen_ms=row.seen_ms,
            assignment=assignments.get(name) if name else None,
            metrics=row.metrics(metric) if metric is not None else {},
            version=row.version,
        )
        for row, name in zip(rows, names, strict=True)
    ]


async def group_views(dependencies: Dependencies) -> list[GroupView]:
    """Returns the groups of all open tasks."""
    groups: dict[str, list[GroupMember]] = {}
    facts: dict[str, tuple[str, int]] = {}
    for row in await dependencies.tasks.get_many(await dependencies.tasks.open_ids()):
        if row.task.spec.group_size < 2:
            continue
        nodes = await dependencies.nodes.get_many(await dependencies.assignments.placed(row.task.id))
        held = await dependencies.assignments.views([node.assignment_id for node in nodes if node.assignment_id])
        for assignment in held.values():
            place = assignment.group
            if place is None or assignment.task_id != row.task.id:
                continue
            facts[place.id] = (row.task.id, place.size)
            groups.setdefault(place.id, []).append(
                GroupMember(rank=place.rank, node=assignment.node, assignment_id=assignment.id, state=assignment.state)
            )
    return [
        GroupView(
            id=group,
            task_id=facts[group][0],
            size=facts[group][1],
            members=tuple(sorted(members, key=lambda member: member.rank)),
        )
        for group, members in sorted(groups.items())
    ]
