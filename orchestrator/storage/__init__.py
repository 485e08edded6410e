"""Where uploaded files lie: one small interface over a local directory and over S3-compatible stores."""

from orchestrator.storage.interface import (
    ObjectFacts,
    ObjectMissing,
    ObjectStore,
    PresignedPut,
    StorageFull,
    StorageUnavailable,
)

__all__ = ["ObjectFacts", "ObjectMissing", "ObjectStore", "PresignedPut", "StorageFull", "StorageUnavailable"]
