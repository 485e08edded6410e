"""Checkpoint announcements: a run's policy versions, each with the block that announced it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ledger.client.contract import BoundContract
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_DIGEST, Digest


@dataclass(frozen=True, slots=True)
class Announcement:
    """One policy version of a run, as the pool's publisher announced it."""

    version: int
    attempt: int
    block: int
    """Height of the block with the announcement. Its hash is the beacon of seeds, unless the node joined later."""
    announced_at: datetime
    digest: Digest


class Checkpoints:
    """Client of the `Checkpoints` contract: reads and makes announcements."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def latest(self, pool_id: int, run: Digest) -> Announcement | None:
        """Returns the newest version of a run; None before the first announcement."""
        return _or_none(await self._contract.read_struct(Announcement, "latestOf", pool_id, run))

    async def get(self, pool_id: int, run: Digest, version: int) -> Announcement | None:
        """Returns the newest announcement of one version of a run; None if there is none."""
        return _or_none(await self._contract.read_struct(Announcement, "announcementOf", pool_id, run, version))

    async def announce(self, *, pool_id: int, run: Digest, version: int, attempt: int, digest: Digest) -> Receipt:
        """Announces a new version, or the newest version again with a higher `attempt`.

        Only the pool's publisher may call this.
        """
        return await self._contract.send("announce", pool_id, run, version, attempt, digest)


def _or_none(announcement: Announcement) -> Announcement | None:
    return None if announcement.digest == ZERO_DIGEST else announcement
