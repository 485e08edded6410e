"""Loop that writes the public summary of the pool."""

from __future__ import annotations

from orchestrator.runs.public_summary import PublicSummaryService
from protocol.redis.leader_lease import LeaderLease


class PublicSummaryLoop:
    """Writes the summary once per round, on the instance that holds the leader lease.

    Args:
        page: Service that publishes the summary.
        lease: Leader lease of this loop.
    """

    def __init__(self, page: PublicSummaryService, *, lease: LeaderLease) -> None:
        self._page = page
        self._lease = lease

    async def round(self) -> int:
        """Writes the summary; returns the number of written summaries, 0 or 1."""
        if not await self._lease.hold():
            return 0
        await self._page.write()
        return 1
