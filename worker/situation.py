"""The daemon's state, as `muster worker status` shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from protocol.identifiers import WireAddress
from protocol.wire.heartbeat import AssignmentReport

MOST_NOTICES = 20
"""Maximum number of notices that are kept; the oldest are dropped."""


class Phase(StrEnum):
    """Phase of the worker's life cycle."""

    STARTING = "starting"
    WAITING = "waiting"
    """The node is registered with discovery and waits for an invite. `detail` names any obstacle to joining."""
    JOINING = "joining"
    MEMBER = "member"
    BANNED = "banned"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass(slots=True)
class Situation:
    """Mutable status of the worker, which the daemon's loops update."""

    phase: Phase = Phase.STARTING
    detail: str = ""
    """Explanation for the contributor, with the action to take if there is one."""
    node_state: str = ""
    """State of this node in the orchestrator's last answer."""
    orchestrator: str = ""
    """URL of the orchestrator."""
    last_answer_ms: int = 0
    interval_s: float = 0.0
    """Time until the next heartbeat in seconds, as the last answer set it."""
    silent_because: str = ""
    """Error of the last heartbeat; empty if the orchestrator answered it."""
    search: str = ""
    """Result of the last search for a newer invite; empty if there was none since the orchestrator's last answer."""
    moved: str = ""
    """Former and present URL of the orchestrator, if the URL changed since the worker started."""
    clock_skew_s: float = 0.0
    """This machine's time minus the orchestrator's, in seconds."""
    discovery: dict[str, str] = field(default_factory=dict)
    """By URL of each discovery service: when the registration expires, or the error."""
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTICES))
    """Messages of the pool's owner to the contributor."""
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
    search: str = ""
    """Result of the last search for the orchestrator's new URL, while the orchestrator is silent."""
    moved: str = ""
    """Former and present URL of the orchestrator, if the URL changed since the worker started."""
    clock_skew_s: float
    discovery: dict[str, str]
    notices: list[str]
    warnings: list[str]
    stopped: str = ""
    """Reason why the worker leases no slots (delivered work was not paid); empty while leasing is allowed."""
    draining: bool
    runtime: str
    runtime_error: str
    task: str
    task_id: str
    assignment: AssignmentReport | None
    metrics: dict[str, float]
    refused: str = ""
    """The last task that this machine refused, with the reason and what to do. Empty when another task has started."""
    queue: dict[str, int]
    parked: list[str]
    given_up: list[str] = []
    """Files that were not delivered, newest first, each with the reason."""
