"""Audit log of an epoch: all its verdicts, each compared with the draw of the revealed secret."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ledger.client import Ledger
from ledger.events.types import SecretCommitted, SecretRevealed, VerdictGiven, WorkSubmitted
from protocol.errors import MusterError, NotFound
from protocol.identifiers import Address, Digest
from protocol.wire.audits import AuditFile
from validator.audit.draw import BASIS_POINTS
from validator.audit.recompute import AuditComparison, Comparison, PastEpoch, PastVerdict, compare
from validator.domain.submissions import SubmittedWork

ReadEvidence = Callable[[Address, Digest], Awaitable[AuditFile]]
"""Downloads an audit file of a validator and verifies its SHA-256."""

AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogEntry:
    """One verdict of an epoch."""

    verdict: PastVerdict
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLog:
    """One epoch of a validator.

    Args:
        validator: The validator.
        epoch: Number of the epoch.
        first: First block of submissions that its secret draws.
        last: Last such block, which holds the next epoch's commitment.
        secret: The secret; None if it was not revealed yet.
        lines: Verdicts in their order.
    """

    validator: Address
    epoch: int
    first: int
    last: int
    secret: bytes | None
    lines: tuple[AuditLogEntry, ...]

    @property
    def differs(self) -> bool:
        """Returns whether the log contains a violation."""
        return any(line.comparison.finding is AuditComparison.DIFFERS for line in self.lines)


class AuditLog:
    """Ledger data of all epochs of a pool, read once.

    Args:
        ledger: Ledger client.
        pool_id: The pool.
        read: Downloads audit files.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, read: ReadEvidence) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._read = read
        self._committed: Sequence[SecretCommitted] = ()
        self._revealed: Sequence[SecretRevealed] = ()
        self._verdicts: Sequence[PastVerdict] = ()
        self._floor = 0.0

    async def load(self) -> None:
        """Reads the pool's history.

        Raises:
            ChainUnavailable: The chain can't be asked.
        """
        pool_id = self._pool_id
        self._committed = await self._ledger.history(SecretCommitted, pool_id=pool_id)
        self._revealed = await self._ledger.history(SecretRevealed, pool_id=pool_id)
        submitted = {each.key: each for each in await self._ledger.history(WorkSubmitted, pool_id=pool_id)}
        given = await self._ledger.history(VerdictGiven, pool_id=pool_id)
        self._verdicts = [_past(each, submitted[each.key]) for each in given if each.key in submitted]
        self._floor = await self._lowest_floor()

    def validators(self) -> list[Address]:
        """Returns validators that committed to secrets, in order of their first commitment."""
        return list(dict.fromkeys(each.validator for each in self._committed))

    def past_epochs(self, validator: Address) -> list[int]:
        """Returns a validator's past epochs, oldest first."""
        return sorted(each.epoch for each in self._committed if each.validator == validator)[:-1]

    def newest_with_verdicts(self, validator: Address) -> int | None:
        """Returns the newest past epoch that has verdicts; None if there is none."""
        for epoch in reversed(self.past_epochs(validator)):
            if self._of(validator, *self._blocks(validator, epoch)):
                return epoch
        return None

    async def of(self, validator: Address, epoch: int) -> EpochLog:
        """Recomputes every draw of an epoch.

        Raises:
            NotFound: The validator has no such epoch, or the epoch is not over.
            ChainUnavailable: The chain can't be asked.
        """
        if epoch not in self.past_epochs(validator):
            raise NotFound(
                f"{validator} has no epoch {epoch} that is over",
                hint="an epoch is over when the next one is committed; leave --epoch out for the newest with verdicts",
            )
        first, last = self._blocks(validator, epoch)
        past = PastEpoch(epoch=epoch, secret=self._secret(validator, epoch))
        verdicts, gate = self._of(validator, first, last), asyncio.Semaphore(AT_ONCE)

        async def line(verdict: PastVerdict) -> AuditLogEntry:
            async with gate:
                return AuditLogEntry(verdict=verdict, comparison=await self._compared(verdict, past))

        lines = await asyncio.gather(*map(line, verdicts))
        return EpochLog(
            validator=validator, epoch=epoch, first=first, last=last, secret=past.secret, lines=tuple(lines)
        )

    async def _compared(self, verdict: PastVerdict, epoch: PastEpoch) -> Comparison:
        try:
            audit = await self._read(verdict.validator, verdict.audit_hash)
        except MusterError as error:
            return Comparison(finding=AuditComparison.UNKNOWN, why=f"its evidence can't be read: {error.detail}")
        try:
            block_hash = await self._ledger.block_hash(verdict.work.block + 1)
        except NotFound:
            block_hash = None
        return compare(verdict, audit, epoch=epoch, block_hash=block_hash, floor=self._floor)

    def _of(self, validator: Address, first: int, last: int) -> list[PastVerdict]:
        return [each for each in self._verdicts if each.validator == validator and first <= each.work.block <= last]

    def _blocks(self, validator: Address, epoch: int) -> tuple[int, int]:
        """Returns the blocks for which an epoch draws: after its commitment, up to the next one's."""
        blocks = {each.epoch: each.log.block_number for each in self._committed if each.validator == validator}
        following = min(each for each in blocks if each > epoch)
        return blocks[epoch] + 1, blocks[following]

    def _secret(self, validator: Address, epoch: int) -> bytes | None:
        for each in self._revealed:
            if (each.validator, each.epoch) == (validator, epoch):
                return bytes.fromhex(each.secret[2:])
        return None

    async def _lowest_floor(self) -> float:
        """Returns the lowest audit floor of all terms of the pool, so that no validator is accused wrongly."""
        pools = self._ledger.pools
        newest = (await pools.get(self._pool_id)).terms_version
        terms = [await pools.terms_at(self._pool_id, version) for version in range(1, newest + 1)]
        terms.append(await pools.terms(self._pool_id))  # terms may have come into force without an event
        return min(each.audit_floor_bps for each in terms) / BASIS_POINTS


def _past(event: VerdictGiven, submitted: WorkSubmitted) -> PastVerdict:
    return PastVerdict(
        work=SubmittedWork.of(submitted),
        validator=event.validator,
        outcome=event.outcome,
        reason=event.reason,
        audit_hash=event.audit_hash,
        decisive=event.decisive,
    )
