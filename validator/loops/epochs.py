"""Commits the secret of a new audit epoch at intervals, and reveals secrets of past epochs.

All state is on the ledger, so that a restarted process continues where the previous process stopped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from ledger.client import Ledger
from ledger.client.pools import Terms
from ledger.errors import TransactionReverted
from ledger.events.types import SecretCommitted, SecretRevealed
from protocol.errors import InvalidInput
from protocol.identifiers import Address
from protocol.runtime.logs import get_logger
from validator.audit.epochs import Epochs

_log = get_logger(__name__)


class EpochTooShort(InvalidInput):
    """The validator's epochs are shorter than the pool's judge period.

    With such epochs, most files would arrive after the secret that draws their rows is public.
    """

    code = "epoch-too-short"


def check_epoch_length(length: timedelta, *, judge_period: timedelta) -> None:
    """Refuses epochs that are shorter than the pool's judge period.

    Nodes may upload a file until its judge period ends. Once an epoch's secret is public, a node can compute which rows
    the secret draws, so all rows of a file that arrives later must be recomputed. With short epochs this would apply to
    most files.

    Args:
        length: Duration of an epoch, the validator's setting `epoch_s`.
        judge_period: The pool's judge period.

    Raises:
        EpochTooShort: The epochs are shorter than the judge period.
    """
    if length < judge_period:
        has, needs = (f"{span.total_seconds():g}" for span in (length, judge_period))
        raise EpochTooShort(
            f"the setting epoch_s is {has}, but the pool gives validators {needs} s to judge work (its judge period)",
            hint=f"set epoch_s of the validator to {needs} or more; `muster pool show` prints the judge period",
        )


AT_ONCE = 16
"""Maximum number of secrets that one round reveals. Many may be due if the validator did not run for a long time."""


class EpochLoop:
    """Loop that commits and reveals the audit secrets of one validator.

    Args:
        ledger: Ledger client with the validator's key.
        epochs: Audit secrets of the validator.
        pool_id: Id of the pool.
        length: Duration of an epoch in the chain's time. With shorter epochs, others can repeat draws sooner; each
            epoch costs two small transactions.
        settled: Number of blocks on top of a commitment before the previous epoch's secret is revealed. If a reorg
            removed the commitment after that reveal, a public secret would draw the rows of new submissions.
        terms: Returns the pool's terms, whose judge period may change; None to skip the check of the epoch length.
    """

    def __init__(
        self,
        ledger: Ledger,
        epochs: Epochs,
        *,
        pool_id: int,
        length: timedelta,
        settled: int = 0,
        terms: Callable[[], Awaitable[Terms]] | None = None,
    ) -> None:
        self._ledger = ledger
        self._epochs = epochs
        self._pool_id = pool_id
        self._length = length
        self._settled = settled
        self._terms = terms
        self._hidden: set[int] | None = None
        """Epochs whose secrets are not revealed yet, the present one included; None before the first round."""

    async def round(self) -> None:
        """Commits the next epoch's secret if it is due, and reveals secrets of past epochs.

        Raises:
            ChainUnavailable: The chain does not answer.
            EpochTooShort: An epoch is due, but would be shorter than the pool's judge period; no epoch begins.
            TransactionReverted: This key is not a validator of the pool.
        """
        if self._hidden is None:
            self._hidden = await self._unrevealed()
        latest = await self._epochs.latest()
        if latest == 0 or await self._is_over(latest):
            latest = await self._begin(latest)
        self._hidden.add(latest)
        begun = await self._commitment_block(latest)
        if begun is None or await self._ledger.block() < begun + self._settled:
            return
        for epoch in sorted(each for each in self._hidden if each < latest)[:AT_ONCE]:
            if await self._epochs.is_ours_to_reveal(epoch):
                await self._epochs.reveal(epoch)
                _log.info("epoch-revealed", epoch=epoch)
            self._hidden.discard(epoch)

    async def _begin(self, latest: int) -> int:
        if self._terms is not None:
            check_epoch_length(self._length, judge_period=(await self._terms()).judge_period)
        try:
            epoch = await self._epochs.commit_next()
        except TransactionReverted as error:
            if error.name != "EpochNotNewer":
                raise
            return latest  # another process with this key committed the epoch first; the next round reads it
        _log.info("epoch-begun", epoch=epoch)
        return epoch

    async def _is_over(self, epoch: int) -> bool:
        found = await self._ledger.audits.get(pool_id=self._pool_id, validator=self._me, epoch=epoch)
        return found is None or await self._now() - found.committed_at >= self._length

    async def _commitment_block(self, epoch: int) -> int | None:
        found = await self._ledger.audits.get(pool_id=self._pool_id, validator=self._me, epoch=epoch)
        return None if found is None else found.block

    async def _unrevealed(self) -> set[int]:
        committed = await self._ledger.history(SecretCommitted, pool_id=self._pool_id, second=self._me)
        revealed = await self._ledger.history(SecretRevealed, pool_id=self._pool_id, second=self._me)
        return {event.epoch for event in committed} - {event.epoch for event in revealed}

    async def _now(self) -> datetime:
        return await self._ledger.now()

    @property
    def _me(self) -> Address:
        return self._epochs.validator
