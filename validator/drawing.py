"""Draws the rows of a submission that are computed again: how many by the node's record, which by secret and chain."""

from __future__ import annotations

from datetime import timedelta

from protocol.clock import Clock
from protocol.errors import NotFound, Unavailable
from protocol.identifiers import Digest
from validator.audit.draw import BASIS_POINTS, row_seed
from validator.audit.rate import RatePolicy, share_of
from validator.chain import Chain
from validator.evidence import Drawn
from validator.examination.interface import RowDraw
from validator.items import Item, Kind
from validator.store.records import NodeRecords
from validator.submissions import SubmittedWork

BLOCK_PATIENCE = timedelta(seconds=3)
"""How long the block behind the submission's is waited for at once; after that the work goes back to the queue."""

LOOK_AGAIN = timedelta(milliseconds=100)
"""The longest pause between two looks whether it is there."""


class BlockNotThere(Unavailable):
    """The block whose hash goes into the draw does not exist yet, or lacks confirmations."""

    code = "block-not-there"


class Drawing:
    """Draws rows.

    Args:
        chain: Terms, epochs, blocks.
        records: What each node's verdicts said so far.
        policy: How fast trust grows.
        clock: Whose time is waited.
        every: Pause between two looks for a block.
    """

    def __init__(
        self,
        chain: Chain,
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

    async def draw(self, item: Item) -> Drawn:
        """Which rows are computed again.

        Raises:
            BlockNotThere: The chain is not so far yet.
            ChainUnavailable: It can't be asked.
            StoreUnavailable: The node's record can't be read.
        """
        if item.kind is not Kind.FIRST:
            why = "a dispute is decided on all rows" if item.kind is Kind.DISPUTE else "a second look is at all rows"
            return Drawn(draw=RowDraw(seed=None, share=1.0), why=why)
        floor = (await self._chain.terms()).audit_floor_bps / BASIS_POINTS
        share, why = share_of(await self._records.of(item.work.node), floor=floor, policy=self._policy)
        if share >= 1:
            return Drawn(draw=RowDraw(seed=None, share=1.0), why=why)
        secret = await (await self._chain.connected()).epochs.secret_before(item.work.block)
        if secret is None:
            why = f"no secret was committed before block {item.work.block}; without one, all rows"
            return Drawn(draw=RowDraw(seed=None, share=1.0), why=why)
        block = item.work.block + 1
        seed = row_seed(secret.secret, item.work.key, await self._hash_behind(item.work))
        return Drawn(draw=RowDraw(seed=seed, share=share), epoch=secret.epoch, block=block, why=why)

    async def _hash_behind(self, work: SubmittedWork) -> Digest:
        """The hash of the block after the submission's, once it has the pool's confirmations."""
        ledger = await self._chain.ledger()
        wanted, until = work.block + 1, self._clock.monotonic() + BLOCK_PATIENCE.total_seconds()
        while await ledger.block() < wanted + self._chain.confirmations:
            if self._clock.monotonic() >= until:
                raise BlockNotThere(f"block {wanted} is waited for, with {self._chain.confirmations} on top of it")
            await self._clock.sleep(self._every)
        try:
            return await ledger.block_hash(wanted)
        except NotFound as error:
            raise BlockNotThere(f"block {wanted} was there and is gone") from error
