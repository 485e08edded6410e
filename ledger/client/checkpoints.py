"""Announced checkpoints: what is the newest policy, and since which block."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ledger.client.contract import BoundContract
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_DIGEST, Digest


@dataclass(frozen=True, slots=True)
class Announcement:
    """One version of a run's policy as its publisher announced it."""

    version: int
    attempt: int
    block: int
    """The block that holds the announcement; its hash is half of the seeds' beacon."""
    announced_at: datetime
    digest: Digest


class Checkpoints:
    """Reads announcements; a pool's publisher makes them."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def latest(self, pool_id: int, run: Digest) -> Announcement | None:
        """The newest version of a run; None before the first."""
        return _known(await self._contract.read_struct(Announcement, "latestOf", pool_id, run))

    async def get(self, pool_id: int, run: Digest, version: int) -> Announcement | None:
        """One version of a run in its newest attempt; None if it was never announced."""
        return _known(await self._contract.read_struct(Announcement, "announcementOf", pool_id, run, version))

    async def announce(self, *, pool_id: int, run: Digest, version: int, attempt: int, digest: Digest) -> Receipt:
        """Announces a version, or a newer attempt of the newest version; the pool's publisher only."""
        return await self._contract.send("announce", pool_id, run, version, attempt, digest)


def _known(announcement: Announcement) -> Announcement | None:
    return None if announcement.digest == ZERO_DIGEST else announcement
