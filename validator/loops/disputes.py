"""Follow-up of a second look: this validator confirms the verdict, disputes it, or does neither."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum

from ledger.client import Ledger
from ledger.client.work import Verdict, WorkRecord, WorkStatus
from ledger.errors import TransactionReverted
from ledger.events.types import VerdictGiven
from protocol.identifiers import Address, Digest
from protocol.runtime.logs import get_logger
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditFile, AuditFinding
from validator.audit.rows import (
    audits_differ,
    compared,
    header_differences,
    row_differences,
    unreadable,
    without_scores,
)
from validator.audit.second_looks import contradicts
from validator.domain.items import Item
from validator.examination.interface import Conclusion
from validator.files import AuditFileWrong
from validator.loops.confirmations import Confirmations

ReadAudit = Callable[[Address, Digest], Awaitable[AuditFile]]
"""Downloads an audit file of a validator and verifies the file's SHA-256."""

_log = get_logger(__name__)


class Followed(StrEnum):
    """Result of the follow-up of a second look."""

    AGREES = "agrees"
    """This validator agrees with the verdict, or can't prove it wrong; it sent nothing."""
    CONFIRMED = "confirmed"
    """This validator agrees, and recorded a paid confirmation on the ledger."""
    DISPUTED = "disputed"
    """This validator disputed the verdict, now or in an earlier attempt."""
    OVER = "over"
    """The verdict can't be disputed any more, or another account disputed it before this validator."""
    OWN = "own"
    """The verdict is this validator's own, and can't be withdrawn."""


class LookResults:
    """Compares the findings of a second look with the first verdict, and disputes or confirms that verdict.

    Args:
        ledger: Returns the ledger client with this validator's key.
        read: Downloads audit files of other validators.
        pool_id: Id of the pool.
    """

    def __init__(self, ledger: Callable[[], Awaitable[Ledger]], *, read: ReadAudit, pool_id: int) -> None:
        self._ledger = ledger
        self._read = read
        self._pool_id = pool_id
        self._confirmations = Confirmations()

    async def compared(self, item: Item, conclusion: Conclusion) -> Conclusion:
        """Compares a conclusion with the audit file of the first verdict; returns it with the comparison as a check.

        Only audit files of accepting verdicts are compared, because the trainer learns from accepted files only. A
        missing or unreadable audit file counts as a difference, too: the author of a verdict must store the audit file
        before sending the verdict, and the trainer needs it to learn from the file. If the difference leads to a
        dispute, the audit file of the deciding validator replaces the first one.

        Args:
            item: The examined item, a second look.
            conclusion: This validator's findings, with every row recomputed.

        Raises:
            Unavailable: The chain, the orchestrator or the object store is down.
        """
        ledger = await self._ledger()
        work = await ledger.work.get(item.work.key)
        if work is None or work.outcome is not Outcome.ACCEPTED:
            return conclusion
        history = await ledger.history(VerdictGiven, pool_id=self._pool_id, second=item.work.node, third=item.work.key)
        first = next((each for each in reversed(history) if not each.decisive), None)
        if first is None:
            return conclusion
        name = f"audit file {first.audit_hash} of {first.validator}"
        try:
            theirs = await self._read(first.validator, first.audit_hash)
        except AuditFileWrong as error:
            _log.warning("audit-file-wrong", work=item.work.key, validator=first.validator, why=error.detail)
            differences: tuple[AuditFinding, ...] = (unreadable(f"the {name} can't be used: {error.detail}"),)
        else:
            differences = (*header_differences(theirs, item.work), *_row_differences(theirs, conclusion))
        return replace(conclusion, checks=(*conclusion.checks, compared(differences, note=f"compared with {name}")))

    async def follow_up(self, item: Item, conclusion: Conclusion, audit_hash: Digest) -> Followed:
        """Disputes the first verdict, confirms it, or does nothing.

        After a crash, this method may be called again for the same item.

        Args:
            item: The examined item, a second look.
            conclusion: This validator's findings, with every row recomputed.
            audit_hash: SHA-256 of this validator's audit file, which is in the object store already.

        Raises:
            ChainUnavailable: The chain does not answer.
            TransactionNotMined: The outcome of the transaction is unknown; call this method again.
        """
        ledger, key = await self._ledger(), item.work.key
        work = await ledger.work.get(key)
        if work is None or work.outcome is None or work.status is not WorkStatus.PROVISIONAL:
            mine = work is not None and work.disputer == ledger.address
            return Followed.DISPUTED if mine else Followed.OVER
        differ = audits_differ(conclusion.checks)
        wrong = differ or (contradicts(work.outcome, conclusion.outcome) and not _over_budget(work, conclusion))
        if work.judge == ledger.address:
            if wrong:
                _log.warning("own-verdict-wrong", work=key, gave=work.outcome.name, found=conclusion.outcome.name)
            return Followed.OWN
        if wrong:
            return await self._dispute(ledger, work, key, conclusion.outcome, audit_hash, audits=differ)
        if work.outcome is conclusion.outcome:
            return await self._confirm(ledger, item, conclusion, audit_hash)
        return Followed.AGREES

    async def _dispute(
        self, ledger: Ledger, work: WorkRecord, key: Digest, own: Outcome, audit_hash: Digest, *, audits: bool
    ) -> Followed:
        try:
            await ledger.work.dispute(key, audit_hash)
        except TransactionReverted as error:
            if error.name not in {"WrongStatus", "TooLate"}:
                raise
            return Followed.OVER  # another account disputed the verdict first, or its challenge period has ended
        gave = None if work.outcome is None else work.outcome.name
        _log.info("verdict-disputed", work=key, judge=work.judge, gave=gave, found=own.name, audits_differ=audits)
        return Followed.DISPUTED

    async def _confirm(self, ledger: Ledger, item: Item, conclusion: Conclusion, audit_hash: Digest) -> Followed:
        key = item.work.key
        if not await ledger.work.look_wanted(key):
            return Followed.AGREES
        look = Verdict(
            key=key,
            sha256=item.work.sha256,
            units=item.work.units,
            outcome=conclusion.outcome,
            reason=int(conclusion.reason),
            audit_hash=audit_hash,
        )
        refused = await self._confirmations.send(ledger, look)
        if refused is not None:
            _log.info("confirmation-refused", work=key, reason=refused.reason)
            return Followed.AGREES
        return Followed.CONFIRMED


def _row_differences(theirs: AuditFile, own: Conclusion) -> tuple[AuditFinding, ...]:
    if not own.rows:
        return ()
    # If this validator's scores differ from the rewards in the rollout file, that is a finding about the node, not
    # about the other audit file. So only the positions of the rows are compared.
    rows = without_scores(own.rows) if own.reason is ReasonCode.REWARD_DIFFERS else own.rows
    seconds = 0.0 if own.timings is None else own.timings.seconds.get("reward", 0.0)
    return row_differences(theirs.rows, rows, scoring=timedelta(seconds=seconds))


def _over_budget(work: WorkRecord, conclusion: Conclusion) -> bool:
    """Returns True if the verdict rejects the file for a near-tie budget that applies to the file.

    Such a rejection is not disputed: it depends on near-ties of the node's other files, which a second look does not
    examine. If no budget applies to the file (in float32, for example), the rejection is wrong and may be disputed.
    """
    return work.reason == ReasonCode.SAMPLING_BUDGET and conclusion.near_ties is not None
