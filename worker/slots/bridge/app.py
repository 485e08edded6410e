"""HTTP API of the bridge, on a unix socket that only the task's own container can see.

    POST /v1/metrics    {"metrics": {"reward": 0.5}}        gauges for the next heartbeats
    POST /v1/files      {"path": "step-3.parquet"}          delivers a file of the data volume
    GET  /v1/files/ID                                       state of the file's delivery
    GET  /v1/identity                                       pool, node, task, group
    GET  /v1/step                                           current step and policy version
    POST /v1/slots      {"step": 3, "groups": 8}            leases a slot
    POST /v1/slots/release  {"slots": [{"step": 3, "index": 0}]}    releases slots
    POST /v1/sessions   {"step": 3, "index": 0, "arithmetic": "torch/float32"}    opens a gateway's session for a slot

A request for a file of kind `rollout` names the slot and the number of work units (`"rollout": {"step": 3, "index": 0,
"units": 812}`). The worker adds the lease that it obtained for this task.

Every request carries `Authorization: Bearer $MUSTER_BRIDGE_TOKEN`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request

from protocol import __version__
from protocol.errors import InvalidInput, NotFound, RateLimited, Unauthenticated
from protocol.http.rates import IpRates, Rate
from protocol.http.serving.service import create_service
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.threads import run_in_thread
from protocol.wire.base import Identifier
from protocol.wire.bridge import ROLLOUT_KIND, DeliveryState, HandedOver, HandOver, Metrics, SessionWish, TaskIdentity
from protocol.wire.runs import StepAnswer
from protocol.wire.serving import ServingSession
from protocol.wire.slots import ReleasedSlots, SlotGrant, SlotWish
from worker.delivery.queue.item import DeliveryStage
from worker.delivery.queue.store import QueueStore
from worker.delivery.work_signing import LEASED_WORK
from worker.slots.bridge.paths import open_inside
from worker.slots.gateway_sessions import GatewaySessions
from worker.slots.task_slots import TaskSlots
from worker.tasks.saved_state import RunningTask

BODY_LIMIT = 64 * 1024
"""Maximum size of a request body, in bytes."""
RATE = Rate(count=100, per=timedelta(seconds=1), burst=400)
"""Rate limit of the task's requests, which protects the worker from a faulty or hostile task."""

_SOON = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeDependencies:
    """Objects that the bridge of one task needs.

    Args:
        task: The running task, with its token.
        node: This node's address.
        pool_id: Number of this node's pool.
        volume: Directory of the task's data volume on this machine.
        queue: The delivery queue.
        on_metrics: Function that is called with the gauges that the task reports.
        on_file: Function that is called after a file was added to the queue.
        clock: Clock for timestamps and rate limits.
        most_file_bytes: Maximum size of one file in bytes.
        most_spooled_bytes: Maximum total size of waiting files in bytes.
        slots: Slots that are leased for the task.
        sessions: Opens the gateway's sessions for these slots.
    """

    task: RunningTask
    node: Address
    pool_id: int
    volume: Path
    queue: QueueStore
    on_metrics: Callable[[Mapping[str, float]], None]
    on_file: Callable[[], None]
    clock: Clock
    most_file_bytes: int
    most_spooled_bytes: int
    slots: TaskSlots
    sessions: GatewaySessions


def create_bridge(dependencies: BridgeDependencies) -> FastAPI:
    """Builds the HTTP application of one task's bridge."""
    rates = IpRates(RATE, clock=dependencies.clock)  # all connections on a unix socket count as one caller
    app = create_service("bridge", version=__version__, body_limit=BODY_LIMIT, ip_rates=rates)
    app.state.dependencies = dependencies
    # Only one file is copied at a time, and at most 16 requests wait, so that a task can't saturate the disk.
    app.state.turn = asyncio.Semaphore(1)
    app.state.waiting = 0

    @app.post("/v1/metrics", status_code=204)
    async def metrics(body: Metrics, _: Checked) -> None:
        """Accepts metrics for the next heartbeats."""
        dependencies.on_metrics(body.metrics)

    @app.post("/v1/files", status_code=202)
    async def files(body: HandOver, _: Checked) -> HandedOver:
        """Adds a file to the delivery queue."""
        if app.state.waiting >= 16:
            raise RateLimited("too many files are being added at once", retry_after=_SOON)
        app.state.waiting += 1
        try:
            async with app.state.turn:
                return await run_in_thread(_add_file, dependencies, body)
        finally:
            app.state.waiting -= 1

    @app.get("/v1/files/{item_id}")
    async def file(item_id: Identifier, _: Checked) -> DeliveryState:
        """Returns the state or outcome of a file's delivery.

        `error` gives the reason if the file was given up.
        """
        return await run_in_thread(_state, dependencies, item_id)

    @app.get("/v1/identity")
    async def identity(_: Checked) -> TaskIdentity:
        """Returns the node, pool, assignment and group of the task."""
        return TaskIdentity(
            node=dependencies.node,
            pool_id=dependencies.pool_id,
            task_id=dependencies.task.task_id,
            task_name=dependencies.task.task_name,
            assignment_id=dependencies.task.assignment_id,
            generation=dependencies.task.generation,
            group=dependencies.task.group,
        )

    @app.get("/v1/step")
    async def step(_: Checked) -> StepAnswer:
        """Returns the run's current step and policy version."""
        return await dependencies.slots.step()

    @app.post("/v1/slots")
    async def slots(body: SlotWish, _: Checked) -> SlotGrant:
        """Leases a slot for the task."""
        return await dependencies.slots.lease(body)

    @app.post("/v1/slots/release", status_code=204)
    async def release(body: ReleasedSlots, _: Checked) -> None:
        """Releases slots for which the task added no file."""
        await dependencies.slots.release(body.slots)

    @app.post("/v1/sessions")
    async def sessions(body: SessionWish, _: Checked) -> ServingSession:
        """Opens a session with the run's gateway for a slot of the task."""
        return await dependencies.sessions.open(body)

    return app


async def _check_token(request: Request, authorization: Annotated[str, Header()] = "") -> None:
    dependencies: BridgeDependencies = request.app.state.dependencies
    expected = f"Bearer {dependencies.task.token}"
    if not hmac.compare_digest(authorization.encode(), expected.encode()):
        raise Unauthenticated(
            "the bridge requires this task's token", hint="send the header Authorization: Bearer $MUSTER_BRIDGE_TOKEN"
        )


Checked = Annotated[None, Depends(_check_token)]


def _add_file(dependencies: BridgeDependencies, body: HandOver) -> HandedOver:
    file = body.key or body.path
    if LEASED_WORK in body.metadata:
        raise InvalidInput(f"a task can't set the metadata {LEASED_WORK!r}", hint="name a slot in `rollout`")
    if body.rollout is not None and body.kind != ROLLOUT_KIND:
        raise InvalidInput(f"a file of kind {body.kind} has no slot", hint="omit `rollout`, or set kind to rollout")
    metadata = {**body.metadata, "task_id": dependencies.task.task_id, "assignment_id": dependencies.task.assignment_id}
    if body.rollout is not None:
        metadata[LEASED_WORK] = dependencies.slots.work_of(body.rollout, file).model_dump_json()
    with open_inside(dependencies.volume, body.path, most_bytes=dependencies.most_file_bytes) as descriptor:
        item_id, new = dependencies.queue.add(
            descriptor,
            name=body.path,
            kind=body.kind,
            key=f"{dependencies.task.assignment_id}:{file}",
            metadata=metadata,
            now_ms=unix_ms(dependencies.clock.now()),
            most_bytes=dependencies.most_file_bytes,
            most_spooled=dependencies.most_spooled_bytes,
        )
    if body.rollout is not None:
        dependencies.slots.handed_over(body.rollout, file)
    dependencies.on_file()
    return HandedOver(id=item_id, new=new)


def _state(dependencies: BridgeDependencies, item_id: str) -> DeliveryState:
    try:
        item = dependencies.queue.get(item_id)
    except NotFound:
        ended = dependencies.queue.finished(item_id)
        state = DeliveryState(id=ended.id, stage=DeliveryStage.DELETED, attempts=0, error=ended.given_up, parked=False)
        metadata = ended.metadata
    else:
        state = DeliveryState(
            id=item.id, stage=item.stage, attempts=item.attempts, error=item.error, parked=bool(item.parked)
        )
        metadata = item.metadata
    if metadata.get("task_id") != dependencies.task.task_id:
        raise NotFound(f"this task has added no file with the id {item_id}")
    return state
