"""Items of the delivery queue and their stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class DeliveryStage(StrEnum):
    """Last completed stage of an item. It is stored durably, so it survives `kill -9`."""

    SPOOLED = "spooled"
    """The queue has its own copy of the file."""
    HASHED = "hashed"
    """Size and SHA-256 are known."""
    REQUESTED = "requested"
    """The orchestrator issued a presigned URL."""
    PUT = "put"
    """The object store has the file."""
    SUBMITTED = "submitted"
    """The ledger or the orchestrator's relayer has accepted the work."""
    ACKNOWLEDGED = "acknowledged"
    """Delivery is confirmed; the copy can be deleted."""
    DELETED = "deleted"
    """The copy is deleted."""


ORDER = tuple(DeliveryStage)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A file in the delivery queue.

    Args:
        id: Random id; also the name of the copy in the spool.
        kind: Type of the file.
        key: Idempotency key: adding a file with a known key returns the existing item.
        metadata: Metadata given when the file was added.
        data: Results of completed stages, by name; no value is empty.
        attempts: Consecutive failures of the current stage.
        not_before_ms: Wall time of the next attempt, in Unix milliseconds.
        parked: Why the item waits for the contributor; empty if it does not.
        error: Text of the last failure.
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
    """Outcome of a file that left the queue.

    Args:
        given_up: Why the file was not delivered; empty if it was.
    """

    id: str
    name: str
    sha256: str
    metadata: Mapping[str, str]
    at_ms: int
    given_up: str
