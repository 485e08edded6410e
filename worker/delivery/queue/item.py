"""What waits in the queue, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class DeliveryStage(StrEnum):
    """What was done last. Each name is a promise that survives `kill -9`."""

    SPOOLED = "spooled"
    """The queue has its own copy of the file."""
    HASHED = "hashed"
    """Size and SHA-256 are known."""
    REQUESTED = "requested"
    """The orchestrator said where to put it."""
    PUT = "put"
    """The object store has it."""
    SUBMITTED = "submitted"
    """The ledger has it, or its relayer has taken it."""
    ACKNOWLEDGED = "acknowledged"
    """The orchestrator knows; the copy may go."""
    DELETED = "deleted"
    """The copy is gone."""


ORDER = tuple(DeliveryStage)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """One file on its way.

    Args:
        id: Random; also the name of the copy in the spool.
        kind: What it is, for the handlers.
        key: Given by who handed it over: the same key is the same item, however often it is handed over.
        metadata: As it was handed over.
        data: What the stages so far have found out; empty strings never.
        attempts: Failures of the present stage in a row.
        not_before_ms: Wall time in Unix milliseconds before which it is not tried again.
        parked: Why it waits for a person, if it does.
        error: The last failure, in words.
    """

    id: str
    stage: DeliveryStage
    kind: str
    key: str
    name: str
    path: Path
    metadata: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    sha256: str = ""
    attempts: int = 0
    not_before_ms: int = 0
    created_ms: int = 0
    parked: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedItem:
    """What became of a file.

    Args:
        given_up: Why it was not delivered; empty if it was.
    """

    id: str
    name: str
    sha256: str
    metadata: Mapping[str, str]
    at_ms: int
    given_up: str
