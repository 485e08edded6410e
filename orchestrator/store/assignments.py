"""Assignments of tasks to nodes in Redis, with their outcomes and logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from orchestrator.scheduler.plan import AssignmentOutcome, TaskPlacement
from orchestrator.store.database import Database
from orchestrator.store.nodes import NodeRow, text_of
from orchestrator.store.scripts import (
    EndAssignment,
    ForgetAssignments,
    KeepLogLines,
    PlaceAssignment,
    RenewAssignment,
    WriteResult,
)
from orchestrator.store.tasks import encode_outcome
from protocol.errors import Conflict, NotFound, Unavailable
from protocol.identifiers import Address, address
from protocol.runtime.clock import milliseconds
from protocol.wire.assignments import AssignmentState, GroupPlace
from protocol.wire.logs import LogBatch, LogLine, LogReceipt
from protocol.wire.pool import AssignmentView

DAY = timedelta(days=1)
KEPT = timedelta(days=7)
"""Default of the time for which an ended assignment and its log are kept."""

MOST_ENDED = 50_000
"""Maximum number of ended assignments that are kept; the oldest are deleted first. Each has about 1 kB, and its log."""

MOST_LINES = 5000
"""Number of newest log lines that are kept per assignment."""

MOST_LOG_BYTES = 8 << 20
"""Maximum bytes of log lines that are kept per assignment, so that one node's long lines can't fill Redis."""

MOST_TOTAL_LOG_BYTES = 1 << 30
"""Default of the maximum bytes of log lines that are kept of all assignments together."""

MOST_CUTS = 256
"""Maximum number of deletions from the largest logs by one batch of lines, so that it does not block Redis for long."""


class SchedulerLeaseLost(Unavailable):
    """Another orchestrator has taken the scheduler's leader lease."""

    code = "lease-lost"


def head_of(*, identifier: str, task_id: str, generation: int, group: GroupPlace | None, restart_nonce: int) -> str:
    """Returns the part of a heartbeat answer that identifies an assignment.

    The part consists of the members of a JSON object, without the braces around them. It is stored in the node's row,
    so that the service can join an answer from such parts without parsing or encoding JSON.
    """
    fields = {
        "id": identifier,
        "task_id": task_id,
        "generation": generation,
        "group": None if group is None else group.model_dump(),
        "restart_nonce": restart_nonce,
    }
    return json.dumps(fields, separators=(",", ":"))[1:-1]


class AssignmentStore:
    """Reads and writes assignments.

    Args:
        database: Database of the pool.
        kept: Time for which an ended assignment and its log are kept.
        most_log_bytes: Maximum bytes of log lines of all assignments together.
    """

    def __init__(
        self, database: Database, *, kept: timedelta = KEPT, most_log_bytes: int = MOST_TOTAL_LOG_BYTES
    ) -> None:
        self._database = database
        self._kept = kept
        self._most_log_bytes = most_log_bytes

    async def place(
        self,
        *,
        lease: str,
        node: Address,
        identifier: str,
        task_id: str,
        task_name: str,
        task_generation: int,
        group: GroupPlace | None,
        now_ms: int,
    ) -> bool:
        """Assigns a task to a node; returns False if the node is not healthy or not free any more.

        Raises:
            SchedulerLeaseLost: Another instance holds the leader lease.
        """
        head = head_of(identifier=identifier, task_id=task_id, generation=1, group=group, restart_nonce=0)
        return await self._write(
            PlaceAssignment(
                lease=lease,
                address=node,
                assignment=identifier,
                head=head,
                reference=f"{task_id}:{task_generation}",
                task=task_id,
                task_name=task_name,
                now_ms=now_ms,
                group="" if group is None else group.model_dump_json(),
            )
        )

    async def renew(
        self,
        row: NodeRow,
        *,
        lease: str,
        task_generation: int | None,
        restart: str | None,
        now_ms: int,
        why: str,
        actor: str,
    ) -> bool:
        """Gives a node a new generation of its assignment.

        It returns False if the node got another assignment or generation after `row` was read.

        Args:
            row: The node's row as it was read.
            lease: Value of the scheduler's leader lease; empty for an API request.
            task_generation: The task's new generation; None to keep the present one.
            restart: Id of a restart, for which the node must replace the container although the task did not change. A
                repeated call with the id of the node's last restart changes nothing, and returns True.
            now_ms: Current time in Unix milliseconds.
            why: Reason that the pool's events show.
            actor: Name of the owner's token, or of the component, that caused the change.

        Raises:
            SchedulerLeaseLost: Another instance holds the leader lease.
        """
        head = json.loads(f"{{{row.head}}}")
        group = None if head["group"] is None else GroupPlace.model_validate(head["group"])
        task_id = str(head["task_id"])
        identifier = str(head["id"])
        return await self._write(
            RenewAssignment(
                lease=lease,
                address=row.address,
                assignment=identifier,
                generation=row.generation,
                head=head_of(
                    identifier=identifier,
                    task_id=task_id,
                    generation=row.generation + 1,
                    group=group,
                    restart_nonce=int(head["restart_nonce"]) + (restart is not None),
                ),
                reference=row.reference if task_generation is None else f"{task_id}:{task_generation}",
                restart=restart or "",
                now_ms=now_ms,
                why=why,
                actor=actor,
            )
        )

    async def end(
        self,
        *,
        lease: str,
        node: Address,
        identifier: str,
        state: AssignmentState,
        why: str,
        now_ms: int,
        outcome: AssignmentOutcome | None,
    ) -> bool:
        """Ends a node's assignment and records its outcome.

        It returns False if the node does not hold the assignment any more.

        Raises:
            SchedulerLeaseLost: Another instance holds the leader lease.
        """
        return await self._write(
            EndAssignment(
                lease=lease,
                address=node,
                assignment=identifier,
                state=state,
                why=why,
                now_ms=now_ms,
                kept_ms=milliseconds(self._kept),
                most_ended=MOST_ENDED,
                outcome=None if outcome is None else encode_outcome(outcome),
            )
        )

    async def placements(self, rows: Sequence[NodeRow]) -> list[TaskPlacement | None]:
        """Returns each node's assignment, in the order of the rows."""
        holders = [row for row in rows if row.assignment_id]
        hashes = await self._database.ask_many(
            [("HGETALL", self._assignment(row.assignment_id or "")) for row in holders]
        )
        found: dict[Address, TaskPlacement] = {}
        for row, raw in zip(holders, hashes, strict=True):
            fields = text_of(raw)
            if "task" in fields:
                found[row.address] = TaskPlacement(
                    id=row.assignment_id or "",
                    task_id=fields["task"],
                    spec_generation=int(row.reference.rpartition(":")[2] or 0),
                    state=AssignmentState(fields["state"]),
                    assigned_at_ms=int(fields["assigned"]),
                    detail=fields.get("detail", ""),
                    group=_group(fields),
                )
        return [found.get(row.address) for row in rows]

    async def views(self, identifiers: Sequence[str]) -> dict[str, AssignmentView]:
        """Returns assignments by id; leaves out those that were deleted after their end."""
        hashes = await self._database.ask_many([("HGETALL", self._assignment(name)) for name in identifiers])
        rows = (text_of(raw) for raw in hashes)
        return {
            name: _view(row, self._kept)
            for name, row in zip(identifiers, rows, strict=True)
            if "task" in row and "node" in row
        }

    async def get(self, identifier: str) -> AssignmentView:
        """Returns one assignment.

        Raises:
            NotFound: There is no such assignment, or it was deleted after its end.
        """
        found = (await self.views([identifier])).get(identifier)
        if found is None:
            raise NotFound(
                f"there is no assignment {identifier}",
                hint=f"`GET /v1/assignments` lists them; ended ones are kept for {self._kept / DAY:g} days",
                code="unknown-assignment",
            )
        return found

    async def page(
        self, *, node: Address | None, task: str | None, after: str | None, limit: int, newest_first: bool
    ) -> list[tuple[str, AssignmentView | None]]:
        """Returns the next assignments of a node, of a task or of the pool, by the time when they were placed.

        Args:
            node: If given, only assignments of this node.
            task: If given and `node` is None, only assignments of this task.
            after: Position of the last assignment that was read; None to begin.
            limit: Maximum number of assignments.
            newest_first: Whether the newest come first.

        Returns:
            Positions with assignments; the assignment is None if it was deleted meanwhile.
        """
        parts = ("node", node) if node is not None else ("task", task) if task is not None else ()
        key = self._database.key("assignments", *parts)
        if newest_first:
            high = "+" if after is None else f"({after}"
            entries = await self._database.ask("ZREVRANGEBYLEX", key, high, "-", "LIMIT", 0, limit)
        else:
            low = "-" if after is None else f"({after}"
            entries = await self._database.ask("ZRANGEBYLEX", key, low, "+", "LIMIT", 0, limit)
        positions = [entry.decode() for entry in entries]
        found = await self.views([position.partition("-")[2] for position in positions])
        return [(position, found.get(position.partition("-")[2])) for position in positions]

    async def placed(self, task_id: str) -> list[Address]:
        """Returns the nodes that hold an assignment of the task."""
        members = await self._database.ask("SMEMBERS", self._database.key("placed", task_id))
        return sorted(Address(member.decode()) for member in members)

    async def keep_lines(self, node: Address, batch: LogBatch) -> LogReceipt:
        """Stores the new lines of a batch.

        Raises:
            NotFound: The node never had this assignment, or it was deleted after its end.
        """
        lines = sorted(batch.lines, key=lambda one: one.sequence)
        position = await self._database.run(
            KeepLogLines(
                address=node,
                assignment=batch.assignment_id,
                most_lines=MOST_LINES,
                most_bytes=MOST_LOG_BYTES,
                most_total=self._most_log_bytes,
                most_cuts=MOST_CUTS,
                kept_ms=milliseconds(self._kept),
                has_more=not batch.has_room,
                sequences_and_lines=tuple(part for line in lines for part in (line.sequence, line.model_dump_json())),
            )
        )
        if not position.known:
            raise NotFound(
                f"{node} has no assignment {batch.assignment_id}",
                hint="push logs of the node's own assignments, before the pool deletes them (`log_kept_s`)",
                code="unknown-assignment",
            )
        return LogReceipt(next_sequence=position.next_sequence, wanted_until_ms=position.wanted_until_ms)

    async def log_bytes(self) -> int:
        """Returns the bytes of the stored log lines of all assignments."""
        return int(await self._database.ask("GET", self._database.key("log-total")) or 0)

    async def lines(self, identifier: str, *, since: int, limit: int) -> list[LogLine]:
        """Returns the stored lines of an assignment's log from a sequence number on, in order."""
        key = self._database.key("logs", identifier)
        entries = await self._database.ask("XRANGE", key, f"{since + 1}-0", "+", "COUNT", limit)
        return [LogLine.model_validate_json(fields[b"line"]) for _, fields in entries]

    async def last_lines(self, identifier: str, *, limit: int) -> list[LogLine]:
        """Returns the newest stored lines of an assignment's log, in order."""
        key = self._database.key("logs", identifier)
        entries = await self._database.ask("XREVRANGE", key, "+", "-", "COUNT", limit)
        return [LogLine.model_validate_json(fields[b"line"]) for _, fields in reversed(entries)]

    async def more_lines_come(self, identifier: str) -> bool:
        """Returns whether the node has further log lines to push, because its last batch was full."""
        return bool(await self._database.ask("HGET", self._assignment(identifier), "log_more") == b"1")

    async def next_sequence(self, identifier: str) -> int:
        """Returns the sequence number after the last stored line of an assignment's log."""
        return int(await self._database.ask("HGET", self._assignment(identifier), "log_next") or 0)

    async def wanted_until(self, identifier: str) -> int:
        """Returns the time until which the node has to push its log; 0 if no reader asked for it.

        The time is in Unix milliseconds.
        """
        return int(await self._database.ask("HGET", self._assignment(identifier), "log_until") or 0)

    async def forget_ended(self, *, now_ms: int) -> int:
        """Deletes some of the assignments that ended more than `kept` ago, with their logs; returns their number."""
        return await self._database.run(
            ForgetAssignments(now_ms=now_ms, kept_ms=milliseconds(self._kept), most_ended=MOST_ENDED)
        )

    async def want_lines(self, identifier: str, *, until_ms: int) -> tuple[int, int]:
        """Records the time until which the node has to push its log, in Unix milliseconds.

        Returns:
            The sequence number after the last stored line, and the time that was recorded before.
        """
        key = self._assignment(identifier)
        following, before = await self._database.ask("HMGET", key, "log_next", "log_until")
        if await self._database.ask("EXISTS", key):
            await self._database.ask("HSET", key, "log_until", until_ms)
        return int(following or 0), int(before or 0)

    async def _write(self, call: PlaceAssignment | RenewAssignment | EndAssignment) -> bool:
        written = await self._database.run(call)
        if written is WriteResult.LEASE_LOST:
            raise SchedulerLeaseLost(
                "another orchestrator has taken the scheduler's leader lease",
                hint="nothing needs to be done: that one schedules",
            )
        return written is WriteResult.YES

    def _assignment(self, identifier: str) -> str:
        return self._database.key("assignment", identifier)


def check_renewed(done: bool, node: Address) -> None:
    """Raises an error if an API request could not renew a node's assignment.

    Raises:
        Conflict: The node has another assignment by now.
    """
    if not done:
        raise Conflict(f"{node} got another assignment just now", hint="read the node again and retry", retryable=True)


def _group(fields: dict[str, str]) -> GroupPlace | None:
    return GroupPlace.model_validate_json(fields["group"]) if fields.get("group") else None


def _view(fields: dict[str, str], kept: timedelta) -> AssignmentView:
    ended = int(fields["ended"]) if fields.get("ended") else None
    return AssignmentView(
        id=fields["id"],
        task_id=fields["task"],
        task_name=fields["name"],
        node=address(fields["node"]),
        generation=int(fields["generation"]),
        state=AssignmentState(fields["state"]),
        detail=fields.get("detail", ""),
        exit_code=int(fields["exit_code"]) if fields.get("exit_code") else None,
        restarts=int(fields.get("restarts") or 0),
        assigned_at_ms=int(fields["assigned"]),
        started_at_ms=int(fields["started"]) if fields.get("started") else None,
        ended_at_ms=ended,
        ended_because=fields.get("because", ""),
        group=_group(fields),
        kept_until_ms=None if ended is None else ended + milliseconds(kept),
    )
