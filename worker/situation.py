"""The daemon's state as `muster worker status` shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from protocol.identifiers import WireAddress
from protocol.wire.heartbeat import AssignmentReport

MOST_NOTICES = 20


class Phase(StrEnum):
    """Phase of the worker's life cycle."""

    STARTING = "starting"
    WAITING = "waiting"
    """Registered with discovery; waits for an invite, or until an obstacle to joining is removed."""
    JOINING = "joining"
    MEMBER = "member"
    BANNED = "banned"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass(slots=True)
class Situation:
    """Mutable status that the daemon's loops update."""

    phase: Phase = Phase.STARTING
    detail: str = ""
    """Explanation for the contributor, with the action to take if there is one."""
    node_state: str = ""
    """This node's state in the orchestrator's last answer."""
    orchestrator: str = ""
    last_answer_ms: int = 0
    interval_s: float = 0.0
    silent_because: str = ""
    """Error of the last heartbeat; empty if it was answered."""
    clock_skew_s: float = 0.0
    """This machine's clock minus the orchestrator's."""
    discovery: dict[str, str] = field(default_factory=dict)
    """Per service URL: when the registration expires, or the error."""
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTICES))
    """Messages from the pool owner."""
    warnings: list[str] = field(default_factory=list)
    draining: bool = False


class WorkerStatus(BaseModel):
    """Answer of `GET /v1/status` on the control socket."""

    model_config = ConfigDict(extra="ignore")

    node: WireAddress
    pool_id: int
    version: str
    phase: Phase
    detail: str
    node_state: str
    orchestrator: str
    last_answer_ms: int
    interval_s: float
    silent_because: str
    clock_skew_s: float
    discovery: dict[str, str]
    notices: list[str]
    warnings: list[str]
    stopped: str = ""
    """Reason why no slots are leased (delivered work was not paid); empty while leasing is allowed."""
    draining: bool
    runtime: str
    runtime_trouble: str
    task: str
    task_id: str
    assignment: AssignmentReport | None
    metrics: dict[str, float]
    refused: str = ""
    """The last task that this machine refused, with the reason and remedy; empty once another task has started."""
    queue: dict[str, int]
    parked: list[str]
    given_up: list[str] = []
    """Files that could not be delivered, newest first, each with the reason."""
