"""The bridge between a task in its container and the worker around it: HTTP over a unix socket."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress
from protocol.wire.base import Identifier, Name, PoolId, ShortText, WireModel
from protocol.wire.slots import RolloutOf
from protocol.wire.tasks import GroupPlace

MOST_METRICS = 32
LONGEST_PATH = 512
ROLLOUT_KIND = "rollout"

MetricName = Annotated[Name, Field(max_length=48)]


class Metrics(WireModel):
    """Body of `POST /v1/metrics`: gauges that the task reports; a new value replaces the previous one."""

    metrics: Annotated[dict[MetricName, float], Field(max_length=MOST_METRICS)]


class HandOver(WireModel):
    """Body of `POST /v1/files`: a file to deliver."""

    path: Annotated[str, Field(min_length=1, max_length=LONGEST_PATH)]
    """Relative to MUSTER_DATA_DIR."""
    kind: Name = ROLLOUT_KIND
    key: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]*$")] = ""
    """Idempotency key of the file; by default its path."""
    metadata: Annotated[dict[Name, ShortText], Field(max_length=32)] = {}
    rollout: RolloutOf | None = None
    """Only for kind `rollout`: the slot of the work."""


class HandedOver(WireModel):
    """The worker has made its own copy, so the task may change or delete its file."""

    id: Identifier
    new: bool
    """False if the file was handed over before."""


class DeliveryState(WireModel):
    """Delivery state of a file."""

    id: Identifier
    stage: str
    attempts: int
    error: str
    parked: bool


class TaskIdentity(WireModel):
    """Identity of the node and the assignment for which the task runs."""

    node: WireAddress
    pool_id: PoolId
    task_id: Identifier
    task_name: Name
    assignment_id: Identifier
    generation: int
    group: GroupPlace | None
