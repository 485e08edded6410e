"""Interface of an object store.

Nodes upload and validators and the trainer download by presigned URLs. Bytes pass through the orchestrator only if the
store is a local directory.
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
    """The object store is down, slow, or refuses our credentials."""

    code = "storage-unavailable"
    default_hint = "try again in a moment; the orchestrator's log says what the store answered"


class StorageFull(Unavailable):
    """The object store has no room."""

    code = "storage-full"
    status: ClassVar[int] = 507
    default_hint = "try again later, and tell the pool's owner"


class ObjectMissing(NotFound):
    """There is no such object."""

    code = "no-object"
    default_hint = "it was never uploaded, or not completely"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresignedPut:
    """A URL that takes one object's bytes, once, and nothing else.

    Args:
        url: Where to.
        headers: To be sent exactly so.
        expires: When it ends.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """Metadata of an object."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in a listing.

    Args:
        key: Its name.
        modified: When it was written, by the store's clock.
    """

    key: ObjectKey
    modified: datetime


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """A part of a listing."""

    objects: tuple[StoredObject, ...]
    following: str
    """Cursor of the next page; empty after the last one."""


class ObjectStore(Protocol):
    """Keeps objects under their keys. Nothing is ever overwritten, and nothing is half there.

    Every method may raise `StorageUnavailable`.
    """

    async def presign_put(self, key: ObjectKey, *, size: int, content_type: str, expires: timedelta) -> PresignedPut:
        """A URL for exactly these bytes: of this size, and with the SHA-256 that the key names.

        Raises:
            StorageFull: There is no room for them.
        """
        ...

    async def presign_get(self, key: ObjectKey, *, expires: timedelta) -> str:
        """A URL that reads the object for so long, if it is there."""
        ...

    async def head(self, key: ObjectKey) -> ObjectFacts | None:
        """Returns the object under a key; None if there is none."""
        ...

    def open(self, key: ObjectKey) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The object's bytes, piece by piece.

        Raises:
            ObjectMissing: There is none.
        """
        ...

    async def page(self, pool_id: int, *, after: str, limit: int) -> ObjectPage:
        """Lists objects of a pool's nodes, without validators' audit files.

        Args:
            pool_id: The pool.
            after: `following` of the page before; empty for the first page.
            limit: The most objects, or a few more where they lie together.
        """
        ...

    async def delete(self, key: ObjectKey) -> None:
        """Deletes an object; one that is not there is no error."""
        ...

    async def check(self) -> None:
        """Returns if the store can be used; a readiness check."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...
