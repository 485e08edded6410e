"""Items of the delivery queue and their stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from protocol.identifiers import Digest


class DeliveryStage(StrEnum):
    """The last completed stage of an item.

    The stage is stored on disk, so it survives `kill -9`.
    """

    SPOOLED = "spooled"
    """The queue has its own copy of the file."""
    HASHED = "hashed"
    """The size and SHA-256 of the copy are known."""
    REQUESTED = "requested"
    """The orchestrator issued a presigned URL."""
    PUT = "put"
    """The object store has the file."""
    SUBMITTED = "submitted"
    """The orchestrator's relayer, or the ledger, has accepted the work."""
    ACKNOWLEDGED = "acknowledged"
    """The delivery is confirmed, so the copy can be deleted."""
    DELETED = "deleted"
    """The copy was deleted."""


ORDER = tuple(DeliveryStage)
"""The stages in the order in which an item passes through them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A file in the delivery queue.

    Args:
        id: Random id, which is also the name of the copy in the spool directory.
        kind: Type of the file.
        key: Idempotency key. Adding a file with a known key returns the existing item.
        metadata: Metadata given when the file was added.
        sha256: SHA-256 of the copy; None before the stage `hashed`.
        data: Results of completed stages, by name. No value of `data` is empty.
        attempts: Number of failures since the last reset; see `QueueStore.advance`.
        not_before_ms: Wall time before which the stage is not tried again, in Unix milliseconds.
        parked: Reason why the item waits for the contributor; empty if it is not parked.
        error: Text of the last failure, or what the item waits for.
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
    sha256: Digest | None = None
    attempts: int = 0
    not_before_ms: int = 0
    created_ms: int = 0
    parked: str = ""
    error: str = ""

    @property
    def known_sha256(self) -> Digest:
        """SHA-256 of the copy of an item that has passed the stage `hashed`."""
        if self.sha256 is None:
            raise ValueError(f"item {self.id} is not hashed yet")
        return self.sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedItem:
    """Outcome of a file that has left the queue.

    Args:
        sha256: SHA-256 of the file; None if it was given up before it was hashed.
        given_up: Reason why the file was not delivered; empty if it was delivered.
    """

    id: str
    name: str
    sha256: Digest | None
    metadata: Mapping[str, str]
    at_ms: int
    given_up: str
