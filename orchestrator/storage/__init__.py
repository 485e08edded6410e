"""Object storage: one interface over a local directory and over S3-compatible stores."""

from orchestrator.storage.interface import (
    ObjectFacts,
    ObjectMissing,
    ObjectPage,
    ObjectStore,
    PresignedPut,
    StorageFull,
    StorageUnavailable,
    StoredObject,
)

__all__ = [
    "ObjectFacts",
    "ObjectMissing",
    "ObjectPage",
    "ObjectStore",
    "PresignedPut",
    "StorageFull",
    "StorageUnavailable",
    "StoredObject",
]
