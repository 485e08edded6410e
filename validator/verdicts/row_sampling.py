"""Draws which rows of a submission the validator recomputes.

The node's record determines the number of rows. The audit secret and a block hash determine which rows.

A draw of rows deters forgery only if the node uploads the file before it can know the audit secret. After the secret is
revealed, a node could withhold exactly those files of which a forged row is drawn. So if a file arrives after the end
of its epoch, the validator recomputes all rows of the file.
"""

from __future__ import annotations

from datetime import timedelta

from protocol.errors import NotFound, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from validator.audit.draw import BASIS_POINTS, RowDraw, row_seed
from validator.audit.rate import RatePolicy, share_of
from validator.chain.connection import PoolChain
from validator.domain.items import Item, ItemKind
from validator.domain.submissions import SubmittedWork
from validator.store.records import NodeRecords
from validator.verdicts.audit_file import DrawnRows

BLOCK_TIMEOUT = timedelta(seconds=3)
"""Time limit of the wait for the block after the submission's block; afterwards the item returns to the queue."""

LOOK_AGAIN = timedelta(milliseconds=100)
"""Longest pause between two reads of the chain while the validator waits for that block."""


class BlockNotThere(Unavailable):
    """The block whose hash is part of the draw's seed does not exist yet, or lacks confirmations."""

    code = "block-not-there"


class RowSampling:
    """Selects the rows of each submission to recompute.

    Args:
        chain: Chain client of the validator's pool.
        records: Verdict records of nodes.
        policy: Policy by which the share of rows falls.
        clock: Clock of pauses.
        every: Pause between two reads of the chain while a block is awaited.
    """

    def __init__(
        self,
        chain: PoolChain,
        *,
        records: NodeRecords,
        policy: RatePolicy,
        clock: Clock,
        every: timedelta = LOOK_AGAIN,
    ) -> None:
        self._chain = chain
        self._records = records
        self._policy = policy
        self._clock = clock
        self._every = every

    async def draw(self, item: Item) -> DrawnRows:
        """Returns the selection of rows to recompute.

        After the download of the file, the caller must pass the selection to `confirmed`.

        Raises:
            BlockNotThere: The block after the submission's block does not exist yet, or lacks confirmations.
            ChainUnavailable: The chain does not answer.
            StoreUnavailable: Redis is down, so the node's record can't be read.
        """
        if item.kind is not ItemKind.FIRST:
            examined = "a dispute" if item.kind is ItemKind.DISPUTE else "a second look"
            return _all_rows(f"{examined} recomputes all rows")
        if item.absent:
            return _all_rows("the file was not in the store at the first attempt, so all rows are recomputed")
        connected = await self._chain.connected()
        floor = (await self._chain.terms()).audit_floor_bps / BASIS_POINTS
        provider = await connected.facts.provider_of(item.work.node)
        record = await self._records.of(item.work.node, provider=provider)
        share, why = share_of(record, floor=floor, policy=self._policy)
        if share >= 1:
            return _all_rows(why)
        secret = await connected.epochs.secret_before(item.work.block)
        if secret is None:
            return _all_rows(f"no secret was committed before block {item.work.block}, so all rows are recomputed")
        block = item.work.block + 1
        seed = row_seed(secret.secret, item.work.key, await self._next_block_hash(item.work))
        return DrawnRows(draw=RowDraw(seed=seed, share=share), epoch=secret.epoch, block=block, why=why)

    async def confirmed(self, drawn: DrawnRows) -> DrawnRows:
        """Returns the selection if its epoch is still open, else all rows; called after the download of the file.

        An epoch's secret may be revealed as soon as the next epoch begins. So a node that uploads its file after the
        beginning of the next epoch may know the drawn rows.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        if drawn.epoch is None or await (await self._chain.connected()).epochs.latest() <= drawn.epoch:
            return drawn
        return _all_rows(f"epoch {drawn.epoch} ended before the file was downloaded, so all rows are recomputed")

    async def _next_block_hash(self, work: SubmittedWork) -> Digest:
        """Waits until the block after the submission's block is confirmed, and returns its hash."""
        ledger = await self._chain.ledger()
        wanted, until = work.block + 1, self._clock.monotonic() + BLOCK_TIMEOUT.total_seconds()
        while await ledger.block() < wanted + self._chain.confirmations:
            if self._clock.monotonic() >= until:
                confirmations = self._chain.confirmations
                raise BlockNotThere(
                    f"block {wanted} does not exist yet, or has fewer than {confirmations} blocks on top of it"
                )
            await self._clock.sleep(self._every)
        try:
            return await ledger.block_hash(wanted)
        except NotFound as error:
            raise BlockNotThere(f"block {wanted} has disappeared; the chain may have been reorganised") from error


def _all_rows(why: str) -> DrawnRows:
    return DrawnRows(draw=RowDraw(seed=None, share=1.0), why=why)
