"""What the ledger says of work: the trainer takes no file for accepted on the orchestrator's word alone."""

from __future__ import annotations

from ledger.client import Ledger
from ledger.events import VerdictGiven
from protocol.identifiers import Digest
from protocol.verdicts import Outcome
from protocol.wire.runs import RolloutItem


class LedgerVerdicts:
    """Verdicts of a pool, read once.

    Args:
        ledger: Connected.
        pool_id: The pool.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._audits: dict[Digest, set[Digest]] = {}
        self._first: int | None = None
        self._next = 0

    async def objection(self, item: RolloutItem) -> str:
        """Why a listed file is not what the ledger has accepted; empty if it is.

        Raises:
            Unavailable: The chain can't be asked now.
        """
        work = await self._ledger.work.get(item.key)
        if work is None or (work.pool_id, work.node, work.sha256) != (self._pool_id, item.node, item.sha256):
            return "the ledger has no such work"
        if work.outcome is not Outcome.ACCEPTED:
            return "the ledger has not accepted it"
        if item.audit_hash not in self._audits.get(item.key, set()):
            await self._read_on(item.submitted_block)
        if item.audit_hash not in self._audits.get(item.key, set()):
            return "no verdict on the ledger names its audit file"
        return ""

    async def _read_on(self, submitted: int) -> None:
        """Reads verdicts since the last time; from further back if a piece of work is older."""
        since = submitted if self._first is None or submitted < self._first else self._next
        upto = await self._ledger.block()
        for event in await self._ledger.history(VerdictGiven, pool_id=self._pool_id, since=since):
            if event.outcome is Outcome.ACCEPTED:
                self._audits.setdefault(event.key, set()).add(event.audit_hash)
        self._first = submitted if self._first is None else min(self._first, submitted)
        self._next = upto  # that block once more: it may not have been read to its end
