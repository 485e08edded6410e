"""Upload tickets in Redis: each node's open tickets and its use of the present quota window."""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrator.domain.upload_quota import Quota
from orchestrator.store.database import Database
from orchestrator.store.scripts import CountUpload
from protocol.errors import RateLimited, Unavailable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import milliseconds
from protocol.wire.uploads import ObjectKey

SOON = timedelta(seconds=15)
"""Maximum `retry_after` while too many tickets are open. It is short, because most tickets are used long before they
expire."""


class QuotaUsed(RateLimited):
    """The node has used up its upload quota of this window, or has too many open tickets."""

    code = "upload-quota"


class UploadStore:
    """Counts upload tickets against the quota of each node.

    Args:
        database: Database of the pool.
        quota: Quota of each node.
    """

    def __init__(self, database: Database, *, quota: Quota) -> None:
        self._database = database
        self._quota = quota

    async def take(
        self, owner: Address, key: ObjectKey, *, size: int, now: datetime, expires: datetime, other: bool = False
    ) -> None:
        """Counts a ticket, unless a ticket for the same object and size is open already.

        Args:
            owner: The node that uploads.
            key: Key of the object.
            size: Size in bytes.
            now: Current time.
            expires: Time at which the ticket expires.
            other: True for a file that is not the work of a lease, to which a smaller quota of bytes applies.

        Raises:
            QuotaUsed: The quota would be exceeded; `retry_after` has the time to wait.
            StoreUnavailable: Redis is down.
        """
        quota, now_ms = self._quota, unix_ms(now)
        length_ms = milliseconds(quota.window)
        window = now_ms // length_ms
        most_account_bytes = quota.other_bytes if other else quota.bytes
        count = await self._database.run(
            CountUpload(
                owner=owner,
                object=str(key),
                size=size,
                now_ms=now_ms,
                open_until_ms=unix_ms(expires),
                most_open=quota.open,
                window=window,
                window_ends_ms=(window + 1) * length_ms,
                most_files=quota.files,
                most_bytes=quota.bytes,
                account="other" if other else "bytes",
                most_account_bytes=most_account_bytes,
            )
        )
        wait = timedelta(milliseconds=max(1, count.wait_ms))
        match count.exceeded:
            case "":
                return
            case "open":
                raise QuotaUsed(f"{owner} has {quota.open} open uploads, the maximum", retry_after=min(wait, SOON))
            case "files":
                raise QuotaUsed(f"{owner} has used its upload quota of {quota.files} files", retry_after=wait)
            case "bytes":
                raise QuotaUsed(f"{owner} has used its upload quota of {most_account_bytes} bytes", retry_after=wait)
            case _:
                raise Unavailable(
                    f"the script count_upload.lua gave the unknown answer {count.exceeded!r}",
                    hint="restart all instances of the service with the same release",
                )

    async def done(self, owner: Address, key: ObjectKey, *, size: int) -> None:
        """Closes a ticket whose object has been uploaded."""
        await self._database.ask("ZREM", self._database.key("uploads", owner), f"{key} {size}")
