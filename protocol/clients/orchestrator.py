"""Client of an orchestrator for the pool's owner, with all routes of the owner's API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from protocol import wire
from protocol.clients.streams import ServerEvent, listening
from protocol.errors import InvalidInput, MusterError, RateLimited
from protocol.http.client import BadAnswer, ServiceClient, ServiceResponse
from protocol.identifiers import Address, Digest
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import token_hex
from protocol.wire.base import parse_answer

if TYPE_CHECKING:
    from protocol.wire.assignments import AssignmentState
    from protocol.wire.events import CreatedWebhook, EventPage, NewWebhook, PoolEvent, Webhook
    from protocol.wire.listings import RolloutItem, StepFigures
    from protocol.wire.logs import LogLine
    from protocol.wire.nodes import NodeState
    from protocol.wire.pool import (
        AllowedNode,
        AssignmentView,
        GroupView,
        HistoryEntry,
        NodeLogs,
        NodeMetrics,
        NodeView,
        PoolOverview,
    )
    from protocol.wire.relays import KnownRelay
    from protocol.wire.runs import (
        CheckpointRef,
        Demand,
        NewAnswers,
        NewCheckpoint,
        NewTrainedStep,
        RunAnswers,
        RunSamples,
        RunView,
        StepView,
        TrainedStep,
        TrainerLease,
        TrainerWish,
    )
    from protocol.wire.slots import Deliveries
    from protocol.wire.tasks import NewTask, Task, TaskPatch, TaskSecrets, TaskState
    from protocol.wire.uploads import ObjectKey, ObjectLink

Model = TypeVar("Model", bound=BaseModel)
Query = dict[str, str | int | Sequence[str]]

PAGE = 200
"""Number of items per page of a listing."""
ALLOWED_PAGE = 1000
"""Number of nodes per page of the allowlist."""
LONGEST_WAIT = timedelta(seconds=30)
"""Maximum wait of a blocking read."""
SHORTEST_PAUSE = timedelta(seconds=1)
"""Pause before the first attempt to reopen a broken stream. It doubles with each further attempt, and has jitter."""
LONGEST_PAUSE = timedelta(seconds=15)
"""Maximum pause before an attempt to reopen a broken stream."""
_EXPIRED = "events-expired"
"""Code of the answer 410 to a `Last-Event-ID` that is no longer kept."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of a pool a reader wants; by default all.

    Args:
        kinds: If not empty, only these kinds, or kinds with these prefixes, which end with a dot.
        node: If given, only events of this node.
        task: If given, only events of the task with this id.
        assignment: If given, only events of the assignment with this id.
        since: If given, only later events.
    """

    kinds: Sequence[str] = ()
    node: Address | None = None
    task: str | None = None
    assignment: str | None = None
    since: datetime | None = None

    @property
    def query(self) -> Query:
        """The query parameters."""
        asked = (("node", self.node), ("task", self.task), ("assignment", self.assignment), *_times(self.since, None))
        return {"kind": self.kinds} | {name: value for name, value in asked if value is not None}


EVERY_EVENT = EventFilter()


class OrchestratorClient(ServiceClient):
    """Client of a pool's orchestrator for the pool's owner.

    It authenticates with an owner's token, or with the key of the pool's manager.

    Every method raises the service's error: `NotFound` for an unknown node or task, `Forbidden` if the token's scope is
    too narrow, `Conflict` if the current state does not allow the operation.
    """

    # The pool

    async def overview(self) -> PoolOverview:
        """Returns an overview of the pool, and the scope of this client."""
        return await self._get("/v1/pool", wire.pool.PoolOverview)

    # Nodes

    async def nodes(
        self,
        *,
        state: NodeState | None = None,
        task: str | None = None,
        label: str | None = None,
        metric: str | None = None,
    ) -> AsyncIterator[NodeView]:
        """Yields all nodes, ordered by address.

        Args:
            state: If given, only nodes in this state are returned.
            task: If given, only nodes to which this task is assigned.
            label: If given, only nodes with this label, written `name=value`.
            metric: Name of a gauge whose value in each node's last heartbeat is included.
        """
        query: Query = {"limit": PAGE}
        asked = (("state", state), ("task", task), ("label", label), ("metric", metric))
        query |= {name: str(value) for name, value in asked if value}
        while True:
            page = await self._get("/v1/nodes", wire.pool.NodeViewPage, query)
            for node in page.nodes:
                yield node
            if page.next_cursor is None or page.next_cursor == query.get("cursor"):
                return
            query["cursor"] = page.next_cursor

    async def allowlist(self) -> AsyncIterator[AllowedNode]:
        """Yields all active nodes whose IP is known.

        It requires the manager's key or a token of scope `admin`.
        """
        query: Query = {"limit": ALLOWED_PAGE}
        while True:
            page = await self._get("/v1/nodes/allowlist", wire.pool.AllowList, query)
            for node in page.nodes:
                yield node
            if page.next_cursor is None or page.next_cursor == query.get("cursor"):
                return
            query["cursor"] = page.next_cursor

    async def node(self, node: Address, *, version: int | None = None, wait: timedelta = LONGEST_WAIT) -> NodeView:
        """Returns one node with its assignment.

        Args:
            node: Address of the node.
            version: `version` of an earlier answer. If given, the service answers when the node has another version, or
                after `wait`.
            wait: Maximum wait, at most 30 s.
        """
        return await self._changed(f"/v1/nodes/{node}", wire.pool.NodeView, version, wait)

    async def history(self, node: Address, *, limit: int = 100) -> tuple[HistoryEntry, ...]:
        """Returns a node's state changes, newest first."""
        return (await self._get(f"/v1/nodes/{node}/history", wire.pool.History, {"limit": limit})).entries

    async def metrics(self, node: Address) -> NodeMetrics:
        """Returns the gauges of a node's last heartbeat."""
        return await self._get(f"/v1/nodes/{node}/metrics", wire.pool.NodeMetrics)

    async def restart(self, node: Address, *, reason: str = "") -> NodeView:
        """Makes a node replace the container of its task."""
        return await self._command(node, "restart", reason)

    async def drain(self, node: Address, *, reason: str = "") -> NodeView:
        """Lets a node finish its task and assigns no other task to it."""
        return await self._command(node, "drain", reason)

    async def resume(self, node: Address, *, reason: str = "") -> NodeView:
        """Ends the drain of a node, so that it gets tasks again."""
        return await self._command(node, "resume", reason)

    async def ban(self, node: Address, *, reason: str) -> NodeView:
        """Bans a node from the pool, also on the ledger; the reason is public there."""
        return await self._command(node, "ban", reason)

    async def unban(self, node: Address, *, reason: str = "") -> NodeView:
        """Lifts the ban of a node, also on the ledger."""
        return await self._command(node, "unban", reason)

    # Logs

    async def logs(
        self, node: Address, *, assignment: str | None = None, since: int | None = None, tail: int = 200
    ) -> NodeLogs:
        """Returns log lines of a node's assignment.

        Args:
            node: Node that runs the task.
            assignment: Id of the assignment; by default the newest one.
            since: Sequence number of the first line to return.
            tail: Number of newest lines to return, if `since` is None.
        """
        return await self._get(f"/v1/nodes/{node}/logs", wire.pool.NodeLogs, _log_query(assignment, since, tail))

    async def follow_logs(
        self, node: Address, *, assignment: str | None = None, since: int | None = None, tail: int = 200
    ) -> AsyncIterator[LogLine]:
        """Yields the lines that `logs` returns, then new lines as they arrive.

        It reconnects after failures, until the caller stops the iteration.
        """
        query = _log_query(assignment, since, tail)
        async for event in self._follow(f"/v1/nodes/{node}/logs", query):
            line = _read(event, wire.logs.LogLine)
            query["since"] = line.sequence + 1  # a new connection continues after this line
            yield line

    # Tasks

    async def create_task(self, task: NewTask) -> Task:
        """Creates a task.

        Retries do not create a second task, because the request has an idempotency key.
        """
        return (await self._once("POST", "/v1/tasks", task)).read(wire.tasks.Task)

    async def tasks(
        self,
        *,
        states: Sequence[TaskState] = (),
        name: str | None = None,
        label: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[Task]:
        """Yields tasks by the time of their creation.

        Args:
            states: If not empty, only tasks in these states.
            name: If given, only tasks with this name.
            label: If given, only tasks whose selector has this label, written `name=value`.
            since: If given, only tasks created later.
            until: If given, only tasks created earlier.
            newest_first: Whether the newest come first.
        """
        query: Query = {"limit": PAGE, "state": states}
        asked = (("name", name), ("label", label), ("sort", "newest" if newest_first else None), *_times(since, until))
        query |= {key: value for key, value in asked if value is not None}
        while True:
            page = await self._get("/v1/tasks", wire.tasks.TaskPage, query)
            for task in page.tasks:
                yield task
            if page.next_cursor is None or page.next_cursor == query.get("cursor"):
                return
            query["cursor"] = page.next_cursor

    async def task(self, task_id: str, *, version: int | None = None, wait: timedelta = LONGEST_WAIT) -> Task:
        """Returns one task.

        Args:
            task_id: Id of the task.
            version: `version` of an earlier answer. If given, the service answers when the task has another version, or
                after `wait`.
            wait: Maximum wait, at most 30 s.
        """
        return await self._changed(f"/v1/tasks/{task_id}", wire.tasks.Task, version, wait)

    async def change_task(self, task_id: str, patch: TaskPatch) -> Task:
        """Changes a task.

        Fields that are absent from the patch keep their values.
        """
        body = patch.model_dump_json(exclude_none=True).encode()
        return (await self._once("PATCH", f"/v1/tasks/{task_id}", body)).read(wire.tasks.Task)

    async def change_task_secrets(self, task_id: str, secrets: TaskSecrets) -> Task:
        """Replaces a task's secrets or its registry credentials; running containers are replaced at once."""
        body = secrets.model_dump_json(exclude_none=True).encode()
        headers = {"Content-Type": "application/json"}
        return (await self.call("PUT", f"/v1/tasks/{task_id}/secrets", body=body, headers=headers)).read(
            wire.tasks.Task
        )

    async def delete_task(self, task_id: str) -> None:
        """Deletes a task and stops its assignments."""
        await self.call("DELETE", f"/v1/tasks/{task_id}")

    # Assignments

    async def assignments(
        self,
        *,
        task: str | None = None,
        node: Address | None = None,
        state: AssignmentState | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[AssignmentView]:
        """Yields assignments, current and ended ones, by the time when they were placed.

        Args:
            task: If given, only assignments of this task.
            node: If given, only assignments of this node.
            state: If given, only assignments in this state.
            newest_first: Whether the newest come first.
        """
        query: Query = {"limit": PAGE, "sort": "newest" if newest_first else "oldest"}
        query |= {name: value for name, value in (("task", task), ("node", node), ("state", state)) if value}
        while True:
            page = await self._get("/v1/assignments", wire.pool.AssignmentPage, query)
            for assignment in page.assignments:
                yield assignment
            if page.next_cursor is None or page.next_cursor == query.get("cursor"):
                return
            query["cursor"] = page.next_cursor

    async def assignment(self, assignment_id: str) -> AssignmentView:
        """Returns one assignment, also after it has ended."""
        return await self._get(f"/v1/assignments/{assignment_id}", wire.pool.AssignmentView)

    async def groups(self) -> tuple[GroupView, ...]:
        """Returns the groups of nodes that run a task together."""
        return (await self._get("/v1/groups", wire.pool.GroupList)).groups

    # The run

    async def run(self) -> RunView:
        """Returns the state of the run.

        Raises:
            NotFound: The pool has no run.
        """
        return await self._get("/v1/run", wire.runs.RunView)

    async def put_demand(self, demand: Demand) -> StepView:
        """Sets the total demand of a step in groups, or closes the step.

        Returns the new counts of the step.
        """
        return (await self.call("PUT", "/v1/run/demand", body=demand, repeatable=True)).read(wire.runs.StepView)

    async def put_checkpoint(self, checkpoint: NewCheckpoint) -> CheckpointRef:
        """Makes an announced version the current one, for which slots are leased.

        Raises:
            Conflict: The orchestrator knows a newer version; or it has not read the announcement from the ledger, in
                which case the error is retryable.
        """
        answer = await self.call("PUT", "/v1/run/checkpoint", body=checkpoint, repeatable=True)
        return answer.read(wire.runs.CheckpointRef)

    async def hold_trainer_lease(self, wish: TrainerWish) -> TrainerLease:
        """Acquires, renews or releases the trainer lease of the run.

        Only one trainer can hold it.

        Raises:
            Conflict: Another trainer holds the lease.
        """
        return (await self.call("PUT", "/v1/run/trainer", body=wish, repeatable=True)).read(wire.runs.TrainerLease)

    async def put_answers(self, answers: NewAnswers) -> RunAnswers:
        """Shows a version's answers to held-out prompts on the pool's page."""
        return (await self.call("PUT", "/v1/run/answers", body=answers, repeatable=True)).read(wire.runs.RunAnswers)

    async def answers(self) -> RunAnswers:
        """Returns the answers of the first and of the newest evaluated version."""
        return await self._get("/v1/run/answers", wire.runs.RunAnswers)

    async def put_trained(self, trained: NewTrainedStep) -> None:
        """Adds a learned step to the curves and samples on the pool's page."""
        await self.call("PUT", "/v1/run/trained", body=trained, repeatable=True)

    async def trained(self, *, first: int | None = None) -> tuple[TrainedStep, ...]:
        """Returns the trainer's metrics by step, from step `first` on; by default of the newest steps."""
        query: Query = {} if first is None else {"first": first}
        return (await self._get("/v1/run/trained", wire.runs.TrainedPage, query)).items

    async def samples(self, *, step: int | None = None) -> RunSamples:
        """Returns sampled rollouts of a step as text; by default of the newest step that has some."""
        return await self._get("/v1/run/samples", wire.runs.RunSamples, {} if step is None else {"step": step})

    async def figures(self, *, first: int | None = None) -> tuple[StepFigures, ...]:
        """Returns the metrics that nodes reported for accepted files, by step.

        The steps begin with `first`; by default they are the newest ones.
        """
        query: Query = {} if first is None else {"first": first}
        return (await self._get("/v1/run/figures", wire.listings.FiguresPage, query)).items

    async def rollouts(
        self, *, step: int | None = None, status: str = "accepted", links: bool = True
    ) -> AsyncIterator[RolloutItem]:
        """Yields submitted files, sorted by step, expiry of the lease, and slot id.

        Args:
            step: Step of the files; by default all stored steps, ascending.
            status: Which files to return: `accepted`, `rejected`, `pending` or `all`.
            links: Whether the items contain sizes and download links, which the orchestrator requests from the store.
        """
        query: Query = {"limit": PAGE, "status": status}
        if not links:
            query["links"] = "false"
        if step is not None:
            query["step"] = step
        while True:
            page = await self._get("/v1/run/rollouts", wire.listings.RolloutPage, query)
            for item in page.items:
                yield item
            if page.next_cursor is None or page.next_cursor == query.get("cursor"):
                return
            query["cursor"] = page.next_cursor

    async def rollout(self, key: Digest) -> RolloutItem:
        """Returns one submitted file by its work key.

        Raises:
            NotFound: The orchestrator has not read the work from the ledger yet, or has deleted its records of the
                step.
        """
        return await self._get(f"/v1/run/rollouts/{key}", wire.listings.RolloutItem)

    async def leases(self, node: Address) -> Deliveries:
        """Returns the outcomes of a node's leases."""
        return await self._get(f"/v1/nodes/{node}/leases", wire.slots.Deliveries)

    # Events

    async def events(
        self,
        *,
        wanted: EventFilter = EVERY_EVENT,
        after: str | None = None,
        before: str | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
        limit: int = 100,
    ) -> EventPage:
        """Returns events of the pool, oldest first unless `newest_first`.

        Args:
            wanted: Which events to return.
            after: Id of an event. If given, these are the events after it. Otherwise these are the newest ones, or with
                a filter the oldest ones that match. The service reads at most 10,000 events per request, so a filtered
                page may be empty; `next_cursor` continues it.
            before: Id of an event. If given, only events before it.
            until: If given, only earlier events.
            newest_first: Whether the newest come first; `next_cursor` is then the next request's `before`.
            limit: Maximum number of events.
        """
        query: Query = {**wanted.query, "limit": limit}
        asked = (
            ("after", after),
            ("before", before),
            ("sort", "newest" if newest_first else None),
            *_times(None, until),
        )
        query |= {name: value for name, value in asked if value is not None}
        return await self._get("/v1/events", wire.events.EventPage, query)

    async def follow_events(
        self, *, wanted: EventFilter = EVERY_EVENT, after: str | None = None
    ) -> AsyncIterator[PoolEvent]:
        """Yields events of the pool as they occur.

        It begins after the event `after`, or by default with the next event. It reconnects after failures, until the
        caller stops the iteration. If the orchestrator has deleted later events meanwhile, the iteration continues with
        the oldest one that is kept, and the client logs the warning `events-lost`.
        """
        if after is None:  # a position is needed if the connection breaks before the first event
            after = (await self.events(limit=1)).next_cursor
        query: Query = {**wanted.query, "after": after}
        async for event in self._follow("/v1/events", query, position="after"):
            read = _read(event, wire.events.PoolEvent)
            query["after"] = read.id
            yield read

    async def relays(self) -> tuple[KnownRelay, ...]:
        """Returns all checkpoint relays that the owner allows."""
        return (await self._get("/v1/relays", wire.relays.RelayList)).relays

    async def allow_relay(self, relay: Address) -> KnownRelay:
        """Allows a checkpoint relay to register with the pool."""
        return (await self.call("PUT", f"/v1/relays/{relay}", repeatable=True)).read(wire.relays.KnownRelay)

    async def deny_relay(self, relay: Address) -> None:
        """Removes a checkpoint relay from the allowed ones and from the list that nodes get."""
        await self.call("DELETE", f"/v1/relays/{relay}")

    async def create_webhook(self, webhook: NewWebhook) -> CreatedWebhook:
        """Creates a webhook.

        Only this answer shows the secret that signs deliveries.
        """
        return (await self._once("POST", "/v1/webhooks", webhook)).read(wire.events.CreatedWebhook)

    async def rotate_webhook_secret(self, webhook_id: str, *, overlap: timedelta | None = None) -> CreatedWebhook:
        """Gives a webhook a new secret, which only this answer shows.

        Args:
            webhook_id: Id of the webhook.
            overlap: Time for which deliveries are signed with the old secret, too; the service's default if None.
        """
        rotation = wire.events.SecretRotation
        wish = rotation() if overlap is None else rotation(overlap_seconds=int(overlap.total_seconds()))
        return (await self._once("POST", f"/v1/webhooks/{webhook_id}/secret", wish)).read(wire.events.CreatedWebhook)

    async def webhooks(self) -> tuple[Webhook, ...]:
        """Returns all webhooks with the state of their deliveries."""
        return (await self._get("/v1/webhooks", wire.events.WebhookList)).webhooks

    async def delete_webhook(self, webhook_id: str) -> None:
        """Deletes a webhook."""
        await self.call("DELETE", f"/v1/webhooks/{webhook_id}")

    # Files

    async def object_link(self, key: ObjectKey) -> ObjectLink:
        """Returns a download link for a file of any node.

        Raises:
            NotFound: The store does not have the object.
        """
        return await self._get("/v1/objects", wire.uploads.ObjectLink, {"key": str(key)})

    # Helpers

    async def _get(self, path: str, model: type[Model], query: Query | None = None) -> Model:
        return (await self.call("GET", path, query=query)).read(model)

    async def _changed(self, path: str, model: type[Model], version: int | None, wait: timedelta) -> Model:
        """Returns a resource, by a blocking read if the caller knows a version of it."""
        if version is None:
            return await self._get(path, model)
        seconds = int(min(max(wait, timedelta(seconds=1)), LONGEST_WAIT).total_seconds())
        limit = timedelta(seconds=seconds + 10)  # the service's wait plus time to respond
        query: Query = {"wait": seconds, "version": version}
        answer = await self.call("GET", path, query=query, call_timeout=limit * 2, attempt_timeout=limit)
        return answer.read(model)

    async def _command(self, node: Address, command: str, reason: str) -> NodeView:
        try:
            cause = wire.pool.Cause(reason=reason)
        except ValidationError:
            raise InvalidInput("a reason must be one printable line of at most 200 characters") from None
        return (await self._once("POST", f"/v1/nodes/{node}/{command}", cause)).read(wire.pool.NodeView)

    async def _once(self, method: str, path: str, body: BaseModel | bytes) -> ServiceResponse:
        """Sends a request with an idempotency key, so that a retry does not execute it again."""
        headers = {wire.tasks.IDEMPOTENCY_HEADER: token_hex(16), "Content-Type": "application/json"}
        return await self.call(method, path, body=body, headers=headers, repeatable=True)

    async def _follow(self, path: str, query: Query, *, position: str | None = None) -> AsyncIterator[ServerEvent]:
        """Yields the events of a stream, and reopens the stream when it breaks.

        The caller updates the position in `query` after each event.

        Args:
            path: Path of the stream.
            query: Query parameters.
            position: Name of the query parameter with the id of the last event, if the service can tell for it whether
                later events were deleted. The client then warns, and continues with those that are kept.

        Raises:
            MusterError: The stream failed with an error that is not retryable, or the first connection failed.
        """
        pause, connected, auth = GrowingPause(first=SHORTEST_PAUSE, longest=LONGEST_PAUSE), False, None
        lossy = position is None
        while True:
            least = timedelta()
            try:
                auth = await self._authentication(refused=auth)  # the service's key may have been rotated
                async with listening(
                    self.location.url + path,
                    query={**query, "follow": "true"},
                    auth=auth,
                    last_event_id=None if lossy or position is None else str(query[position]),
                    transport=self._transport,
                ) as events:
                    connected = True
                    async for event in events:
                        if event.name == "error":
                            break
                        pause.succeeded()
                        lossy = position is None
                        yield event
            except RateLimited as error:
                least = error.retry_after
            except MusterError as error:
                if error.code == _EXPIRED and not lossy:
                    _log.warning("events-lost", url=self.location.url + path, detail=error.detail, hint=error.hint)
                    lossy = True
                    continue
                if not error.retryable or not connected:
                    raise
            await self._clock.sleep(max(pause.failed(), least))


def _times(since: datetime | None, until: datetime | None) -> tuple[tuple[str, int | None], ...]:
    """Returns the query parameters of a listing's range of times."""
    both = (("created_after_ms", since), ("created_before_ms", until))
    return tuple((name, None if time is None else int(time.timestamp() * 1000)) for name, time in both)


def _log_query(assignment: str | None, since: int | None, tail: int) -> Query:
    query: Query = {"tail": tail} if since is None else {"since": since}
    return query if assignment is None else query | {"assignment": assignment}


def _read(event: ServerEvent, model: type[Model]) -> Model:
    try:
        return parse_answer(model, event.data)
    except ValidationError:
        raise BadAnswer(
            f"an event is not a valid {model.__name__}", hint="client and service may have different versions"
        ) from None
