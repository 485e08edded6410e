"""Audit log of a validator's past epoch: repeats each verdict's row draw and compares it with the audit file."""

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
"""Downloads an audit file of a validator and verifies the file's SHA-256."""

AT_ONCE = 8
"""Maximum number of audit files that are downloaded concurrently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogEntry:
    """One verdict of an epoch, with the result of repeating its row draw."""

    verdict: PastVerdict
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLog:
    """Audit log of one past epoch of a validator.

    Args:
        validator: Address of the validator.
        epoch: Number of the epoch.
        first: First block whose submissions the epoch covers: the epoch's secret draws the rows of these submissions.
        last: Last block whose submissions the epoch covers; the next epoch was committed in this block.
        secret: The epoch's secret; None if the validator has not revealed it yet.
        lines: Verdicts on the submissions of the blocks `first` to `last`, in the order of the ledger.
    """

    validator: Address
    epoch: int
    first: int
    last: int
    secret: bytes | None
    lines: tuple[AuditLogEntry, ...]

    @property
    def differs(self) -> bool:
        """True if a verdict in the log violates the rules of the draw."""
        return any(line.comparison.finding is AuditComparison.DIFFERS for line in self.lines)


class AuditLog:
    """Builds the audit logs of all validators of a pool from ledger data, which `load` reads once.

    Args:
        ledger: Ledger client.
        pool_id: Id of the pool.
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
        """Reads the pool's commitments, reveals, submissions, verdicts and audit floors from the ledger.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        pool_id = self._pool_id
        self._committed = await self._ledger.history(SecretCommitted, pool_id=pool_id)
        self._revealed = await self._ledger.history(SecretRevealed, pool_id=pool_id)
        submitted = {each.key: each for each in await self._ledger.history(WorkSubmitted, pool_id=pool_id)}
        given = await self._ledger.history(VerdictGiven, pool_id=pool_id)
        self._verdicts = [_past(each, submitted[each.key]) for each in given if each.key in submitted]
        self._floor = await self._lowest_floor()

    def validators(self) -> list[Address]:
        """Returns all validators that ever committed to a secret, in the order of their first commitment."""
        return list(dict.fromkeys(each.validator for each in self._committed))

    def past_epochs(self, validator: Address) -> list[int]:
        """Returns the numbers of a validator's past epochs, oldest first; the newest epoch is still open."""
        return sorted(each.epoch for each in self._committed if each.validator == validator)[:-1]

    def newest_with_verdicts(self, validator: Address) -> int | None:
        """Returns a validator's newest past epoch with verdicts; None if there is none."""
        for epoch in reversed(self.past_epochs(validator)):
            if self._of(validator, *self._blocks(validator, epoch)):
                return epoch
        return None

    async def of(self, validator: Address, epoch: int) -> EpochLog:
        """Repeats the draw of every verdict of an epoch, and compares the results with the audit files.

        Raises:
            NotFound: The validator has no such epoch, or the epoch is still open.
            ChainUnavailable: The chain does not answer.
        """
        if epoch not in self.past_epochs(validator):
            raise NotFound(
                f"{validator} has no past epoch {epoch}",
                hint="an epoch ends when the next one is committed; omit --epoch for the newest with verdicts",
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
            return Comparison(finding=AuditComparison.UNKNOWN, why=f"the audit file can't be read: {error.detail}")
        try:
            block_hash = await self._ledger.block_hash(verdict.work.block + 1)
        except NotFound:
            block_hash = None
        return compare(verdict, audit, epoch=epoch, block_hash=block_hash, floor=self._floor)

    def _of(self, validator: Address, first: int, last: int) -> list[PastVerdict]:
        return [each for each in self._verdicts if each.validator == validator and first <= each.work.block <= last]

    def _blocks(self, validator: Address, epoch: int) -> tuple[int, int]:
        """Returns the first and the last block whose submissions an epoch covers: its secret draws their rows.

        The first is the block after the epoch's commitment; the last is the block of the next epoch's commitment.
        """
        blocks = {each.epoch: each.log.block_number for each in self._committed if each.validator == validator}
        following = min(each for each in blocks if each > epoch)
        return blocks[epoch] + 1, blocks[following]

    def _secret(self, validator: Address, epoch: int) -> bytes | None:
        for each in self._revealed:
            if (each.validator, each.epoch) == (validator, epoch):
                return bytes.fromhex(each.secret[2:])
        return None

    async def _lowest_floor(self) -> float:
        """Returns the lowest audit floor that the pool's terms ever had.

        The log can't determine which terms applied to a verdict. With the lowest floor it accuses no validator wrongly.
        """
        pools = self._ledger.pools
        newest = (await pools.get(self._pool_id)).terms_version
        terms = [await pools.terms_at(self._pool_id, version) for version in range(1, newest + 1)]
        terms.append(await pools.terms(self._pool_id))  # announced terms come into force by time, without an event
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
