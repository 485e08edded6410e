"""Object storage: one interface, for a local directory and for S3-compatible stores."""

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
