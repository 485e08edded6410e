"""Tasks in Redis. Secrets of tasks are encrypted, and the API never returns them to the owner."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from orchestrator.scheduler.plan import AssignmentOutcome, OpenTask
from orchestrator.secrets import SecretCipher
from orchestrator.store.database import Database
from orchestrator.store.idempotency import created_id, key_reused
from orchestrator.store.nodes import text_of
from orchestrator.store.scripts import DeleteTask, WriteTask
from protocol.errors import Conflict, NotFound, PreconditionFailed, Unavailable
from protocol.identity.signing import unix_ms
from protocol.redis.script_call import Argument
from protocol.runtime.clock import Clock
from protocol.wire.assignments import AssignmentState
from protocol.wire.tasks import DesiredState, NewTask, Task, TaskPatch, TaskSecrets, TaskSpec, TaskState

MOST_TASKS = 10_000
"""Maximum number of tasks, including finished ones, which stay until the owner deletes them."""

_OVER = frozenset({TaskState.COMPLETED, TaskState.FAILED})
_OUTCOME: TypeAdapter[AssignmentOutcome] = TypeAdapter(AssignmentOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """Row of a task in Redis."""

    task: Task
    revision: str
    """Number that every change increases, to detect concurrent writes."""
    sealed: str
    """The task's secrets and registry credentials, encrypted; empty if it has none."""


class TaskStore:
    """Reads and writes tasks.

    Args:
        database: Database of the pool.
        cipher: Encrypts secrets.
        clock: Clock of time stamps.
    """

    def __init__(self, database: Database, *, cipher: SecretCipher, clock: Clock) -> None:
        self._database = database
        self._cipher = cipher
        self._clock = clock

    async def create(self, new: NewTask, *, actor: str, key: str | None = None) -> TaskRow:
        """Stores a new task and returns its row.

        Args:
            new: The task's specification and secrets.
            actor: Name of the owner's token.
            key: Idempotency key. Several requests of the same actor with the same key create one task.

        Raises:
            Conflict: The pool has `MOST_TASKS` tasks; or another task was created with this idempotency key.
            InvalidInput: The task has secrets, and the orchestrator has no key to encrypt them.
        """
        if int(await self._database.ask("ZCARD", self._database.key("tasks"))) >= MOST_TASKS:
            raise Conflict(
                f"the pool has {MOST_TASKS} tasks, the maximum", hint="delete finished tasks", code="too-many-tasks"
            )
        now = unix_ms(self._clock.now())
        identifier = created_id("task", actor, key)
        secret = new.model_dump_json(include={"secrets", "registry"})
        sealed = self._cipher.encrypt(secret.encode()) if new.secrets or new.registry is not None else ""
        fields = {
            "name": new.spec.name,
            "spec": new.spec.model_dump_json(),
            "generation": "1",
            "desired": DesiredState.RUNNING,
            "state": TaskState.PENDING,
            "reason": "the scheduler has not planned it yet",
            "created": str(now),
            "sealed": sealed,
            "secret_names": json.dumps(sorted(new.secrets)),
        }
        try:
            await self._write(identifier, "", fields, is_open=True, kind="task.created", actor=actor, created=now)
        except Conflict:
            if key is None:
                raise
        row = await self.get(identifier)
        task = row.task
        if task.spec != new.spec or task.secret_names != tuple(sorted(new.secrets)):
            raise key_reused(f"another task, {identifier}, was created with this idempotency key")
        return row

    async def patch(
        self, identifier: str, patch: TaskPatch, *, actor: str, only: Collection[str] | None = None
    ) -> TaskRow:
        """Changes a task and returns its row; a change that concerns its nodes makes a new generation.

        Args:
            identifier: Id of the task.
            patch: The change.
            actor: Name of the owner's token.
            only: Revisions to which the change applies; None: any.

        Raises:
            NotFound: There is no such task.
            PreconditionFailed: The task has another revision than `only` names.
            Conflict: Another request changed the task at the same time.
        """
        row = await self.get(identifier)
        check_revision(row, only)
        before = row.task
        spec = before.spec if patch.spec is None else patch.spec
        update = {name: value for name, value in (("replicas", patch.replicas), ("priority", patch.priority)) if value}
        if patch.priority == 0:
            update["priority"] = 0
        spec = TaskSpec.model_validate({**spec.model_dump(), **update})
        desired = patch.desired_state or before.desired_state
        starts_over = desired is DesiredState.RUNNING and before.state in {
            TaskState.STOPPED,
            TaskState.COMPLETED,
            TaskState.FAILED,
        }
        # A change of replicas, priority or deadline, or a stop, changes nothing in the container that nodes run for the
        # task, so it makes no new generation.
        renewed = _spec_for_nodes(spec) != _spec_for_nodes(before.spec) or starts_over
        state, reason = before.state, before.reason
        if desired is DesiredState.STOPPED and before.state in {TaskState.PENDING, TaskState.RUNNING}:
            state, reason = TaskState.STOPPED, f"stopped by {actor}"
        elif desired is DesiredState.RUNNING and (starts_over or renewed):
            state, reason = TaskState.PENDING, "the scheduler has not planned it yet"
        fields = {
            "name": spec.name,
            "spec": spec.model_dump_json(),
            "generation": str(before.generation + renewed),
            "desired": desired,
            "state": state,
            "reason": reason,
        }
        is_open = state in {TaskState.PENDING, TaskState.RUNNING}
        kind = "task.stopped" if state is TaskState.STOPPED else "task.changed"
        await self._write(
            identifier, row.revision, fields, is_open=is_open, kind=kind, actor=actor, created=before.created_at_ms
        )
        if renewed:
            # Outcomes of older generations no longer count. Running assignments are renewed and report new outcomes.
            await self._database.ask("DEL", self._database.key("outcomes", identifier))
        return await self.get(identifier)

    async def change_secrets(
        self, identifier: str, new: TaskSecrets, *, actor: str, only: Collection[str] | None = None
    ) -> TaskRow:
        """Replaces a task's secrets, its registry credentials, or both, and returns its row.

        An open task gets a new generation, so that nodes start it with the new secrets at once. An ended task gets them
        when it starts again. Secrets that the task has already change nothing, so that the request can be repeated.

        Raises:
            NotFound: There is no such task.
            PreconditionFailed: The task has another revision than `only` names.
            Conflict: Another request changed the task at the same time.
            InvalidInput: The orchestrator has no key to encrypt secrets.
            Unavailable: The present secrets, some of which stay, can't be decrypted.
        """
        row = await self.get(identifier)
        check_revision(row, only)
        before = row.task
        present = json.loads(self._cipher.decrypt(row.sealed)) if row.sealed else {"secrets": {}, "registry": None}
        changed = json.loads(new.model_dump_json(exclude_none=True))
        merged = {**present, **changed}
        if merged == present:
            return row
        is_open = before.state in {TaskState.PENDING, TaskState.RUNNING}
        fields = {
            "generation": str(before.generation + is_open),
            "sealed": self._cipher.encrypt(json.dumps(merged).encode()) if any(merged.values()) else "",
            "secret_names": json.dumps(sorted(merged["secrets"])),
        }
        if is_open:
            fields |= {"state": TaskState.PENDING, "reason": "the scheduler has not planned it yet"}
        kind = "task.secrets-changed"
        await self._write(
            identifier, row.revision, fields, is_open=is_open, kind=kind, actor=actor, created=before.created_at_ms
        )
        if is_open:
            await self._database.ask("DEL", self._database.key("outcomes", identifier))
        return await self.get(identifier)

    async def delete(self, identifier: str, *, actor: str, only: Collection[str] | None = None) -> None:
        """Deletes a task; the scheduler stops its assignments.

        Raises:
            NotFound: There is no such task.
            PreconditionFailed: The task has another revision than `only` names.
            Conflict: Another request changed the task at the same time.
        """
        revision = None
        if only is not None:
            row = await self.get(identifier)
            check_revision(row, only)
            revision = row.revision
        now = unix_ms(self._clock.now())
        call = DeleteTask(task=identifier, revision=revision, now_ms=now, actor=actor)
        match await self._database.run(call):
            case "unknown":
                raise _not_found(identifier)
            case "changed":
                raise _changed(identifier)

    async def get(self, identifier: str) -> TaskRow:
        """Returns a task.

        Raises:
            NotFound: There is no such task.
        """
        rows = await self.get_many([identifier])
        if not rows:
            raise _not_found(identifier)
        return rows[0]

    async def get_many(self, identifiers: Sequence[str]) -> list[TaskRow]:
        """Returns the tasks that exist, in the order of the ids."""
        commands: list[Sequence[Argument]] = []
        for identifier in identifiers:
            commands.append(("HGETALL", self._database.key("task", identifier)))
            commands.append(("HGETALL", self._database.key("counts", identifier)))
        answers = await self._database.ask_many(commands)
        rows = []
        for index, identifier in enumerate(identifiers):
            fields = text_of(answers[2 * index])
            if "spec" in fields:
                rows.append(_row(identifier, fields, text_of(answers[2 * index + 1])))
        return rows

    async def page(
        self,
        *,
        after: str | None,
        limit: int,
        newest_first: bool = False,
        created_after_ms: int | None = None,
        created_before_ms: int | None = None,
    ) -> list[tuple[str, TaskRow | None]]:
        """Returns the next tasks by the time of their creation.

        Args:
            after: Position of the last task that was read, `CREATED-ID`; None to begin.
            limit: Maximum number of tasks.
            newest_first: Whether the newest come first.
            created_after_ms: If given, only tasks that were created later, in Unix milliseconds.
            created_before_ms: If given, only tasks that were created earlier.

        Returns:
            Positions with tasks; the task is None if it was deleted meanwhile.
        """
        key = self._database.key("tasks")
        low = "-inf" if created_after_ms is None else f"({created_after_ms}"
        high = "+inf" if created_before_ms is None else f"({created_before_ms}"
        commands: list[Sequence[Argument]] = []
        created, _, last = (after or "").partition("-")
        if after is not None:  # tasks of the same millisecond, which a page may end between
            commands.append(("ZRANGEBYSCORE", key, created, created, "WITHSCORES"))
            low, high = (low, f"({created}") if newest_first else (f"({created}", high)
        page: tuple[Argument, ...] = ("WITHSCORES", "LIMIT", 0, limit)
        commands.append(
            ("ZREVRANGEBYSCORE", key, high, low, *page) if newest_first else ("ZRANGEBYSCORE", key, low, high, *page)
        )
        *ties, rest = [_scored(answer) for answer in await self._database.ask_many(commands)]
        same = [one for one in (ties[0] if ties else []) if last and (one[0] < last if newest_first else one[0] > last)]
        names = [*(reversed(same) if newest_first else same), *rest][:limit]
        rows = {row.task.id: row for row in await self.get_many([identifier for identifier, _ in names])}
        return [(f"{score}-{identifier}", rows.get(identifier)) for identifier, score in names]

    async def ended_before(self, time_ms: int, *, after: str | None, limit: int) -> tuple[list[TaskRow], str | None]:
        """Returns completed and failed tasks that ended before a time, from a page of all tasks, oldest first.

        Args:
            time_ms: The time, in Unix milliseconds.
            after: Position after the previous page; None to begin.
            limit: Maximum number of tasks on the page, also of those that have not ended.

        Returns:
            The tasks, and the position after the page; None after the last page.
        """
        page = await self.page(after=after, limit=limit, created_before_ms=time_ms)
        rows = [row for _, row in page if row is not None and row.task.state in _OVER]
        ended = await self._database.ask_many(
            [("HGET", self._database.key("task", row.task.id), "ended") for row in rows]
        )
        found = [row for row, at in zip(rows, ended, strict=True) if at is not None and int(at) < time_ms]
        return found, page[-1][0] if len(page) == limit else None

    async def version(self, identifier: str) -> int:
        """Returns the version of a task, which every change raises; 0 if there is no such task."""
        return int(await self._database.ask("HGET", self._database.key("task", identifier), "ver") or 0)

    async def open_ids(self) -> list[str]:
        """Returns the ids of tasks that are neither stopped, deleted nor ended."""
        return sorted(
            name.decode() for name in await self._database.ask("SMEMBERS", self._database.key("tasks", "open"))
        )

    async def open_tasks(self) -> list[OpenTask]:
        """Returns the tasks of `open_ids` with the outcomes of their assignments."""
        identifiers = await self.open_ids()
        rows = await self.get_many(identifiers)
        outcomes = await self._database.ask_many(
            [("HVALS", self._database.key("outcomes", row.task.id)) for row in rows]
        )
        return [
            OpenTask(
                id=row.task.id,
                generation=row.task.generation,
                spec=row.task.spec,
                created_at_ms=row.task.created_at_ms,
                outcomes=_in_order(_OUTCOME.validate_json(value) for value in values),
            )
            for row, values in zip(rows, outcomes, strict=True)
        ]

    async def forget_outcomes(self, identifier: str, assignments: Sequence[str]) -> None:
        """Deletes outcomes of some of a task's assignments; the counts of assignments by state stay."""
        await self._database.ask("HDEL", self._database.key("outcomes", identifier), *assignments)

    async def fragment(self, reference: str) -> bytes | None:
        """Returns the task's part of a heartbeat answer: spec, secrets, registry credentials.

        Args:
            reference: Task and its generation, as `id:generation`, from the node's row.

        Returns:
            The members of a JSON object, without the braces around them; None if the task was deleted.

        Raises:
            Unavailable: The task has a newer generation, which the scheduler sends to its nodes soon; or its secrets
                can't be decrypted.
        """
        identifier, _, generation = reference.partition(":")
        spec, sealed, current = await self._database.ask(
            "HMGET", self._database.key("task", identifier), "spec", "sealed", "generation"
        )
        if spec is None:
            return None
        if current.decode() != generation:
            raise Unavailable(
                f"task {identifier} was changed just now",
                hint="keep the running task and send the next heartbeat",
                code="task-changing",
            )
        secret = b'"secrets":{},"registry":null'
        if sealed:
            secret = self._cipher.decrypt(sealed.decode()).strip()[1:-1]
        return b'"spec":' + bytes(spec) + b"," + bytes(secret)

    async def _write(
        self,
        identifier: str,
        revision: str,
        fields: dict[str, str],
        *,
        is_open: bool,
        kind: str,
        actor: str,
        created: int,
    ) -> None:
        now = unix_ms(self._clock.now())
        call = WriteTask(
            task=identifier,
            revision=revision,
            now_ms=now,
            is_open=is_open,
            kind=kind,
            actor=actor,
            created_ms=created,
            fields=fields,
        )
        if not await self._database.run(call):
            raise _changed(identifier)


def check_revision(row: TaskRow, only: Collection[str] | None) -> None:
    """Checks that a task has one of the revisions that a request names; None: any.

    Raises:
        PreconditionFailed: It has another revision.
    """
    if only is not None and row.revision not in only:
        raise PreconditionFailed(
            f"task {row.task.id} was changed since the version that If-Match names",
            hint="read the task again, apply the change to it, and send the new ETag",
        )


def encode_outcome(outcome: AssignmentOutcome) -> str:
    """Encodes an outcome as the JSON that is stored in Redis."""
    return _OUTCOME.dump_json(outcome).decode()


def _spec_for_nodes(spec: TaskSpec) -> TaskSpec:
    """Returns a copy of a spec without the values that concern only the scheduler."""
    return spec.model_copy(update={"replicas": 1, "priority": 0, "deadline_ms": None})


def _scored(pairs: Sequence[bytes]) -> list[tuple[str, str]]:
    """Returns the members and scores of an answer with `WITHSCORES`."""
    return [(pairs[index].decode(), pairs[index + 1].decode()) for index in range(0, len(pairs), 2)]


def _in_order(outcomes: Iterable[AssignmentOutcome]) -> tuple[AssignmentOutcome, ...]:
    return tuple(sorted(outcomes, key=lambda outcome: (outcome.at_ms, outcome.node)))


def _row(identifier: str, fields: dict[str, str], counts: dict[str, str]) -> TaskRow:
    task = Task(
        id=identifier,
        spec=TaskSpec.model_validate_json(fields["spec"]),
        generation=int(fields["generation"]),
        desired_state=DesiredState(fields["desired"]),
        state=TaskState(fields["state"]),
        reason=fields["reason"],
        created_at_ms=int(fields["created"]),
        secret_names=tuple(json.loads(fields["secret_names"])),
        assignments={AssignmentState(name): int(value) for name, value in counts.items() if int(value) > 0},
        version=int(fields.get("ver") or 0),
    )
    return TaskRow(task=task, revision=fields["rev"], sealed=fields["sealed"])


def _changed(identifier: str) -> Conflict:
    return Conflict(
        f"task {identifier} was changed by another request just now",
        hint="read the task again and retry",
        retryable=True,
    )


def _not_found(identifier: str) -> NotFound:
    return NotFound(f"there is no task {identifier}", hint="`muster pool tasks` lists them", code="unknown-task")
