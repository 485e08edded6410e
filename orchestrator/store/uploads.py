"""Uploads in Redis: what each node has open, and how much it was allowed in the present window."""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrator.domain.upload_quota import Quota
from orchestrator.store.database import Database
from protocol.errors import RateLimited, Unavailable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.wire.uploads import ObjectKey

SOON = timedelta(seconds=15)
"""An open ticket is often done with long before it ends: ask again after this at the latest."""


class QuotaUsed(RateLimited):
    """The node has sent as much as the pool takes of it for now."""

    code = "upload-quota"


class UploadStore:
    """Counts uploads.

    Args:
        database: The pool's.
        quota: Of each node.
    """

    def __init__(self, database: Database, *, quota: Quota) -> None:
        self._database = database
        self._quota = quota

    async def take(
        self, owner: Address, key: ObjectKey, *, size: int, now: datetime, expires: datetime, other: bool = False
    ) -> None:
        """Counts a ticket; one for the same object and size that is still open costs nothing.

        Args:
            owner: Uploads it.
            key: The object.
            size: In bytes.
            now: The time.
            expires: When the ticket ends.
            other: Whether it is a file of a node that is not the work of a lease: fewer bytes of those are taken.

        Raises:
            QuotaUsed: It is one too many, or too large; says until when.
            StoreUnavailable: Redis is down.
        """
        quota, now_ms = self._quota, unix_ms(now)
        length_ms = int(quota.window.total_seconds() * 1000)
        window = now_ms // length_ms
        too_much, wait_ms = await self._database.call(
            "upload",
            owner,
            str(key),
            size,
            now_ms,
            unix_ms(expires),
            quota.open,
            window,
            (window + 1) * length_ms,
            quota.files,
            quota.bytes,
            "other" if other else "bytes",
            quota.other_bytes if other else quota.bytes,
        )
        wait = timedelta(milliseconds=max(1, int(wait_ms)))
        match too_much:
            case 0:
                return
            case 1:
                raise QuotaUsed(f"{quota.open} uploads of {owner} are open", retry_after=min(wait, SOON))
            case 2:
                raise QuotaUsed(f"{owner} has uploaded its {quota.files} files of this window", retry_after=wait)
            case 3:
                most = quota.other_bytes if other else quota.bytes
                raise QuotaUsed(f"{owner} has uploaded its {most} bytes of this window", retry_after=wait)
            case _:
                raise Unavailable("the store's answer can't be read")

    async def done(self, owner: Address, key: ObjectKey, *, size: int) -> None:
        """Closes a ticket: its object is there."""
        await self._database.ask("ZREM", self._database.key("uploads", owner), f"{key} {size}")
