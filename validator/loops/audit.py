"""Background loops of audit epochs and second looks, which are built when the chain first answers."""

from __future__ import annotations

from datetime import timedelta

from ledger.artifacts import Contract
from validator.audit.second_looks import LookPolicy
from validator.dependencies import Dependencies
from validator.loops.epochs import EpochLoop
from validator.loops.juries import Juries
from validator.loops.second_looks import FOLLOWED, SecondLooks


class AuditLoops:
    """The loops of audit epochs and second looks of one validator.

    Both loops need a chain connection. Each loop is built in its first round after the chain answers, so that the
    service can start while the chain is down.

    Args:
        dependencies: Dependencies of the validator.
        juries: Records the order of validators for disputes on the ledger.
    """

    def __init__(self, dependencies: Dependencies, *, juries: Juries) -> None:
        self._dependencies = dependencies
        self._juries = juries
        self._epochs: EpochLoop | None = None
        self._looks: SecondLooks | None = None

    async def epochs(self) -> None:
        """Runs one round of the epoch loop: commits the next secret if it is due, and reveals past secrets.

        Raises:
            EpochTooShort: The setting `epoch_s` is shorter than the pool's judge period. No further epoch begins then,
                and all rows of each file are recomputed.
            ChainUnavailable: The chain does not answer.
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
        """Runs one round of the second-look loop: reads verdicts and disputes, queues examinations.

        Raises:
            ChainUnavailable: The chain does not answer.
            StoreUnavailable: Redis is down.
        """
        if self._looks is None:
            dependencies, settings = self._dependencies, self._dependencies.settings
            connected = await dependencies.chain.connected()
            self._looks = SecondLooks(
                connected.ledger,
                dependencies.follower(f"looks-{dependencies.key.address}", {Contract.WORK_LEDGER: FOLLOWED}),
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
                juries=self._juries,
            )
            dependencies.progress.looks = self._looks.counts
        await self._looks.round()
