"""Draws the rows of a submission to recompute: the number by the node's record, the rows by secret and block hash.

A draw protects only if the file was fixed and available while the secret was unknown. After the secret is revealed, a
node could withhold exactly the files of which a forged row is drawn; so a file that comes that late is audited in full.
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

BLOCK_PATIENCE = timedelta(seconds=3)
"""Longest wait for the block after the submission's; then the work returns to the queue."""

LOOK_AGAIN = timedelta(milliseconds=100)
"""Longest pause between two checks for that block."""


class BlockNotThere(Unavailable):
    """The block whose hash is part of the seed does not exist yet, or lacks confirmations."""

    code = "block-not-there"


class RowSampling:
    """Draws rows.

    Args:
        chain: The ledger.
        records: Verdict records of nodes.
        policy: Policy by which the share falls.
        clock: Clock of pauses.
        every: Pause between two checks for a block.
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
        """Returns the rows to recompute, provided that the file is complete in time; see `confirmed`.

        Raises:
            BlockNotThere: The block after the submission's is not there yet.
            ChainUnavailable: The chain does not answer.
            StoreUnavailable: The node's record can't be read.
        """
        if item.kind is not ItemKind.FIRST:
            why = (
                "a dispute is decided on all rows" if item.kind is ItemKind.DISPUTE else "a second look is at all rows"
            )
            return _all_rows(why)
        if item.absent:
            return _all_rows("the file was not in the store at the first look; then all rows")
        connected = await self._chain.connected()
        floor = (await self._chain.terms()).audit_floor_bps / BASIS_POINTS
        provider = await connected.facts.provider_of(item.work.node)
        record = await self._records.of(item.work.node, provider=provider)
        share, why = share_of(record, floor=floor, policy=self._policy)
        if share >= 1:
            return _all_rows(why)
        secret = await connected.epochs.secret_before(item.work.block)
        if secret is None:
            return _all_rows(f"no secret was committed before block {item.work.block}; without one, all rows")
        block = item.work.block + 1
        seed = row_seed(secret.secret, item.work.key, await self._hash_behind(item.work))
        return DrawnRows(draw=RowDraw(seed=seed, share=share), epoch=secret.epoch, block=block, why=why)

    async def confirmed(self, drawn: DrawnRows) -> DrawnRows:
        """Returns the draw if its epoch is not over, else all rows. Call it when the file has been downloaded.

        An epoch's secret may be revealed as soon as the next epoch begins, so a node may have chosen a later file with
        knowledge of the drawn rows.

        Raises:
            ChainUnavailable: The chain can't be asked.
        """
        if drawn.epoch is None or await (await self._chain.connected()).epochs.latest() <= drawn.epoch:
            return drawn
        return _all_rows(f"epoch {drawn.epoch} was over before the file was complete here; then all rows")

    async def _hash_behind(self, work: SubmittedWork) -> Digest:
        """Returns the hash of the block after the submission's, once it has the pool's confirmations."""
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


def _all_rows(why: str) -> DrawnRows:
    return DrawnRows(draw=RowDraw(seed=None, share=1.0), why=why)
