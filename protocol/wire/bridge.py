"""Wire models of the bridge between a task in its container and the worker.

The bridge is HTTP over a unix socket.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress
from protocol.wire.assignments import GroupPlace
from protocol.wire.base import Identifier, Name, PoolId, ShortText, WireModel
from protocol.wire.runs import ArithmeticName, SlotIndex, Step
from protocol.wire.slots import RolloutOf

MOST_METRICS = 32
"""Maximum number of gauges that a task may report."""
LONGEST_PATH = 512
"""Maximum length of a path in `HandOver`, in characters."""
ROLLOUT_KIND = "rollout"
"""Kind of a file with work, which is submitted to the ledger."""

MetricName = Annotated[Name, Field(max_length=48)]


class Metrics(WireModel):
    """Body of `POST /v1/metrics`: gauges that the task reports.

    A new value replaces the previous one.
    """

    metrics: Annotated[dict[MetricName, float], Field(max_length=MOST_METRICS)]


class HandOver(WireModel):
    """Body of `POST /v1/files`: a file that the worker should deliver."""

    path: Annotated[str, Field(min_length=1, max_length=LONGEST_PATH)]
    """Path of the file, relative to MUSTER_DATA_DIR."""
    kind: Name = ROLLOUT_KIND
    key: Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]*$")] = ""
    """Idempotency key of the file; if empty, its path is used."""
    metadata: Annotated[dict[Name, ShortText], Field(max_length=32)] = {}
    rollout: RolloutOf | None = None
    """Slot of the work; only for kind `rollout`."""


class HandedOver(WireModel):
    """Answer of `POST /v1/files`: the worker has made its own copy of the file.

    The task may change or delete its file now.
    """

    id: Identifier
    new: bool
    """False if the task had handed over this file before."""


class SessionWish(WireModel):
    """Body of `POST /v1/sessions`: a task's request for a session with the gateway, for one of its slots.

    The answer is the gateway's `ServingSession`.
    """

    step: Step
    index: SlotIndex
    arithmetic: ArithmeticName
    """Engine and data type, or numerics class, with which the task answers."""


class DeliveryState(WireModel):
    """State of a file's delivery."""

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
