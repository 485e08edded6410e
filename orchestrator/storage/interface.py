"""Interface of an object store for rollout files and audit files.

Nodes upload files with presigned URLs. Validators and the trainer download the files with other presigned URLs. The
bytes pass through the orchestrator only if the store is a local directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from protocol.errors import NotFound, Unavailable
from protocol.wire.uploads import ObjectKey


class StorageUnavailable(Unavailable):
    """The object store is down, is slow, or refuses the orchestrator's credentials."""

    code = "storage-unavailable"
    default_hint = "try again in a moment; the orchestrator's log has the store's answer"


class StorageFull(Unavailable):
    """The object store has no free space."""

    code = "storage-full"
    status: ClassVar[int] = 507
    default_hint = "try again later, and tell the pool's owner"


class ObjectMissing(NotFound):
    """The object store has no object with this key."""

    code = "no-object"
    default_hint = "the object was never uploaded completely"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresignedPut:
    """A presigned URL for the upload of one object.

    Args:
        url: The presigned URL.
        headers: Headers of the PUT request; the client must send exactly these.
        expires: Time at which the URL expires.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """Metadata of an object."""

    size: int
    """Size of the object, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in a listing.

    Args:
        key: Key of the object.
        size: Size of the object, in bytes.
        modified: Time at which the object was written, by the store's clock.
    """

    key: ObjectKey
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """One page of a listing."""

    objects: tuple[StoredObject, ...]
    following: str
    """Cursor of the next page; empty after the last one."""


class ObjectStore(Protocol):
    """Stores objects under their keys.

    An object is never overwritten, and appears only when it is complete. Every method may raise `StorageUnavailable`.
    """

    async def presign_put(self, key: ObjectKey, *, size: int, content_type: str, expires: timedelta) -> PresignedPut:
        """Returns a URL that accepts exactly `size` bytes with the SHA-256 that the key contains.

        Raises:
            StorageFull: The store has no free space for these bytes.
        """
        ...

    async def presign_get(self, key: ObjectKey, *, expires: timedelta) -> str:
        """Returns a URL that serves the object for the duration `expires`."""
        ...

    async def head(self, key: ObjectKey) -> ObjectFacts | None:
        """Returns the metadata of the object under a key; None if there is no object."""
        ...

    def open(self, key: ObjectKey) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Opens an object; yields its bytes in pieces.

        Raises:
            ObjectMissing: There is no such object.
        """
        ...

    async def page(self, pool_id: int, *, audits: bool = False, after: str, limit: int) -> ObjectPage:
        """Lists objects of a pool's nodes, or audit files of its validators.

        Args:
            pool_id: The pool.
            audits: True to list audit files.
            after: `following` of the previous page; empty for the first page.
            limit: Maximum number of objects; the store in a local directory may return a few more.
        """
        ...

    async def delete(self, key: ObjectKey) -> None:
        """Deletes an object; does nothing if there is none."""
        ...

    async def check(self) -> None:
        """Checks that the store can be used; the orchestrator does so at its start."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...
