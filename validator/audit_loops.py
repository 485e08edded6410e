"""Loops of audit epochs and second looks; both start when the chain is first reachable."""

from __future__ import annotations

from datetime import timedelta

from ledger.artifacts import Contract
from validator.audit.second_looks import LookPolicy
from validator.dependencies import Dependencies, following_of
from validator.loops.epochs import EpochLoop
from validator.loops.second_looks import FOLLOWED, LookCounts, SecondLooks


class Looking:
    """Starts the two loops when the chain first answers.

    Args:
        parts: Dependencies of the validator.
    """

    def __init__(self, parts: Dependencies) -> None:
        self._parts = parts
        self._epochs: EpochLoop | None = None
        self._looks: SecondLooks | None = None

    @property
    def counts(self) -> LookCounts:
        """Items queued since the start."""
        return LookCounts() if self._looks is None else self._looks.counts

    async def epochs(self) -> None:
        """Begins and ends epochs.

        Raises:
            EpochTooShort: Epochs are shorter than the pool's judge period. Then none begins, and all rows are
                recomputed.
        """
        if self._epochs is None:
            settings, connected = self._parts.settings, await self._parts.chain.connected()
            self._epochs = EpochLoop(
                connected.ledger,
                connected.epochs,
                pool_id=settings.pool_id,
                length=timedelta(seconds=settings.epoch_s),
                settled=settings.confirmations,
                terms=self._parts.chain.terms,
            )
        await self._epochs.round()

    async def verdicts(self) -> None:
        """Reads verdicts and disputes."""
        if self._looks is None:
            parts, settings, connected = self._parts, self._parts.settings, await self._parts.chain.connected()
            self._looks = SecondLooks(
                connected.ledger,
                following_of(
                    f"looks-{parts.key.address}",
                    {Contract.WORK_LEDGER: FOLLOWED},
                    settings=settings,
                    chain=parts.chain,
                    redis=parts.redis,
                    clock=parts.clock,
                ),
                queue=parts.queue,
                records=parts.records,
                epochs=connected.epochs,
                pool_id=settings.pool_id,
                policy=LookPolicy(
                    accepted=settings.looks_at_accepted,
                    rejected=settings.looks_at_rejected,
                    forged=settings.looks_at_forged,
                ),
                takeover=timedelta(seconds=settings.takeover_s),
                juries=parts.juries,
            )
        await self._looks.round()
