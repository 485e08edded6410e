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
        dependencies: Dependencies of the validator.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
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
            settings, connected = self._dependencies.settings, await self._dependencies.chain.connected()
            self._epochs = EpochLoop(
                connected.ledger,
                connected.epochs,
                pool_id=settings.pool_id,
                length=timedelta(seconds=settings.epoch_s),
                settled=settings.confirmations,
                terms=self._dependencies.chain.terms,
            )
        await self._epochs.round()

    async def verdicts(self) -> None:
        """Reads verdicts and disputes."""
        if self._looks is None:
            dependencies, settings = self._dependencies, self._dependencies.settings
            connected = await dependencies.chain.connected()
            self._looks = SecondLooks(
                connected.ledger,
                following_of(
                    f"looks-{dependencies.key.address}",
                    {Contract.WORK_LEDGER: FOLLOWED},
                    settings=settings,
                    chain=dependencies.chain,
                    redis=dependencies.redis,
                    clock=dependencies.clock,
                ),
                queue=dependencies.queue,
                records=dependencies.records,
                epochs=connected.epochs,
                pool_id=settings.pool_id,
                policy=LookPolicy(
                    accepted=settings.looks_at_accepted,
                    rejected=settings.looks_at_rejected,
                    forged=settings.looks_at_forged,
                ),
                takeover=timedelta(seconds=settings.takeover_s),
                juries=dependencies.juries,
            )
        await self._looks.round()
