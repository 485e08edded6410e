"""Reads verdicts from the ledger, because the trainer does not trust the orchestrator's list of accepted files."""

from __future__ import annotations

from ledger.client import Ledger
from ledger.events.types import VerdictGiven
from protocol.errors import Unavailable
from protocol.identifiers import Digest
from protocol.verdicts import Outcome
from protocol.wire.listings import RolloutItem


class NotOnLedger(Unavailable):
    """The ledger does not confirm a file that the orchestrator lists.

    The orchestrator's RPC endpoint may be ahead of the trainer's, or the orchestrator may lie.
    """

    code = "not-on-ledger"


class LedgerVerdicts:
    """Reads the verdicts on a pool's work.

    Args:
        ledger: Ledger client.
        pool_id: Pool of the run.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int) -> None:
        self._ledger = ledger
        self._pool_id = pool_id

    async def objection(self, item: RolloutItem) -> str:
        """Returns why the ledger does not confirm a file that is listed as accepted.

        The text is empty if the ledger confirms the file.

        Raises:
            Unavailable: The chain does not answer.
        """
        work = await self._ledger.work.get(item.key)
        if work is None or (work.pool_id, work.node, work.sha256) != (self._pool_id, item.node, item.sha256):
            return "the ledger has no such work"
        if work.outcome is not Outcome.ACCEPTED:
            return "the verdict on the ledger does not accept the file"
        if item.audit_hash not in await self._audits(item):
            return "no accepting verdict on the ledger names the listed audit file"
        return ""

    async def _audits(self, item: RolloutItem) -> set[Digest]:
        """Returns the hashes of the audit files that accepting verdicts name.

        The search begins at the block number that the orchestrator gives. A wrong number can only hide verdicts.
        """
        given = await self._ledger.history(
            VerdictGiven, pool_id=self._pool_id, second=item.node, third=item.key, since=item.submitted_block
        )
        return {event.audit_hash for event in given if event.outcome is Outcome.ACCEPTED}
