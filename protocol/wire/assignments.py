"""States of assignments, and places in groups, which both the worker's and the owner's views of an assignment have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.wire.base import Identifier, WireModel


class AssignmentState(WireEnum):
    """State of an assignment, which the worker reports with every heartbeat."""

    PENDING = "pending"
    PULLING = "pulling"
    RUNNING = "running"
    RESTARTING = "restarting"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Returns whether the assignment has ended."""
        return self in {AssignmentState.COMPLETED, AssignmentState.FAILED, AssignmentState.STOPPED}


class GroupPlace(WireModel):
    """A node's rank in its group, and the size of the group."""

    id: Identifier
    rank: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=1)]
