"""What the daemon knows of itself, as `muster worker status` shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from protocol.identifiers import WireAddress
from protocol.wire.heartbeat import AssignmentReport

MOST_NOTICES = 20


class Phase(StrEnum):
    """Where the worker is on its way."""

    STARTING = "starting"
    WAITING = "waiting"
    """Registered with discovery; something keeps it from joining, or no invite has come."""
    JOINING = "joining"
    MEMBER = "member"
    BANNED = "banned"
    DRAINING = "draining"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass(slots=True)
class Situation:
    """The daemon's picture of itself; its parts write into it."""

    phase: Phase = Phase.STARTING
    detail: str = ""
    """In words, with what to do if something is to be done."""
    node_state: str = ""
    """As the orchestrator last said."""
    orchestrator: str = ""
    last_answer_ms: int = 0
    interval_s: float = 0.0
    silent_because: str = ""
    """Why the last heartbeat was not answered; empty when it was."""
    clock_skew_s: float = 0.0
    """This machine's clock less the orchestrator's."""
    discovery: dict[str, str] = field(default_factory=dict)
    """Per service: when it expires, or what went wrong."""
    notices: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTICES))
    """From the pool's owner."""
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
    """Why no slots are leased, because work was not paid; empty while they are."""
    draining: bool
    runtime: str
    runtime_trouble: str
    task: str
    task_id: str
    assignment: AssignmentReport | None
    metrics: dict[str, float]
    refused: str = ""
    """Task that this machine refused last, with the reason and what to change; empty once another was started."""
    queue: dict[str, int]
    parked: list[str]
    given_up: list[str] = []
    """Files that can never be delivered, newest first, each with the reason."""
