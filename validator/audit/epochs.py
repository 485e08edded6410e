"""Audit secrets of a validator, one per epoch, which are derived from the validator's key and not stored.

A secret is the SHA-256 of the key's signature over a text with chain, contract, pool and epoch. Signatures are
deterministic (RFC 6979), so a key derives the same secrets on every machine; a revealed secret discloses nothing about
the other secrets. The ledger stores the commitments (`ledger/contracts/AuditSecrets.sol`, decisions 8 and 28).
"""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass, field

from ledger.client import Ledger
from ledger.client.audits import Commitment, commitment_of
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.identity.keys import Key

TAG = "muster-audit-secret-v1"
"""Domain separation tag of the secrets. The tag must never change, or committed secrets could not be revealed."""

MOST_REMEMBERED = 4096
"""Maximum number of cached commitments; the cache is emptied when it is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSecret:
    """The audit secret of one epoch, and the block of its commitment.

    Args:
        epoch: Number of the epoch, from 1 for each validator and pool.
        block: Number of the commitment's block; the secret draws the rows to recompute of submissions in later blocks.
        secret: The secret, 32 bytes, which must stay private until the next epoch is committed.
    """

    epoch: int
    block: int
    secret: bytes = field(repr=False)


def secret_of(key: Key, *, chain_id: int, contract: Address, pool_id: int, epoch: int) -> bytes:
    """Derives the audit secret of an epoch, 32 bytes, from a validator's key.

    Args:
        key: The validator's key.
        chain_id: Id of the chain.
        contract: Address of the contract `AuditSecrets` on that chain.
        pool_id: Id of the pool.
        epoch: Number of the epoch.
    """
    text = "\n".join((TAG, str(chain_id), contract, str(pool_id), str(epoch)))
    return hashlib.sha256(TAG.encode() + key.sign_message(text.encode())).digest()


class Epochs:
    """The audit epochs of one validator in one pool: commitments and reveals on the ledger, and the secrets.

    Args:
        ledger: Ledger client; `commit_next` and `reveal` send transactions, for which the ledger client needs the
            validator's key.
        key: The validator's key, from which the secrets derive.
        pool_id: Id of the pool.
        settled: Number of blocks on top of a commitment before it is cached.
    """

    def __init__(self, ledger: Ledger, key: Key, *, pool_id: int, settled: int = 0) -> None:
        self._ledger = ledger
        self._key = key
        self._pool_id = pool_id
        self._settled = settled
        self.validator = key.address
        self._remembered: dict[int, Commitment | None] = {}
        self._blocks: list[tuple[int, int]] = []
        """Pairs (block of a cached commitment, its epoch), ascending."""

    def secret(self, epoch: int) -> bytes:
        """Returns this validator's secret of an epoch, committed or not."""
        deployment = self._ledger.deployment
        return secret_of(
            self._key,
            chain_id=deployment.chain_id,
            contract=self._ledger.audits.at,
            pool_id=self._pool_id,
            epoch=epoch,
        )

    async def latest(self) -> int:
        """Returns the newest committed epoch; 0 before the first."""
        return await self._ledger.audits.latest(pool_id=self._pool_id, validator=self.validator)

    async def secret_before(self, block: int) -> EpochSecret | None:
        """Returns the newest secret committed before `block`, which draws the rows of work submitted in that block.

        Returns None if no secret was committed before that block, or if the committed secret does not derive from this
        key. In both cases the validator recomputes all rows.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        epoch = self._known_before(block)
        if epoch is not None:
            return self._secret_if_ours(epoch, self._remembered[epoch])
        epoch, head = await self.latest(), await self._ledger.block()
        while epoch > 0:
            found = await self._commitment(epoch, settled_at=head - self._settled)
            if found is not None and found.block < block:
                return self._secret_if_ours(epoch, found)
            epoch -= 1
        return None

    def _secret_if_ours(self, epoch: int, found: Commitment | None) -> EpochSecret | None:
        if found is None or found.commitment != self._commitment_of(epoch):
            return None
        return EpochSecret(epoch=epoch, block=found.block, secret=self.secret(epoch))

    async def commit_next(self) -> int:
        """Begins the next epoch by committing its secret on the ledger; returns the epoch's number.

        Raises:
            TransactionReverted: Another process with the same key was faster, or the key is not a validator.
            ChainUnavailable: The chain does not answer.
        """
        epoch = await self.latest() + 1
        await self._ledger.audits.commit(pool_id=self._pool_id, epoch=epoch, commitment=self._commitment_of(epoch))
        return epoch

    async def is_ours_to_reveal(self, epoch: int) -> bool:
        """Returns True if the committed secret of an epoch derives from this key and is not revealed yet."""
        found = await self._ledger.audits.get(pool_id=self._pool_id, validator=self.validator, epoch=epoch)
        if found is None or found.commitment != self._commitment_of(epoch):
            return False
        return found.secret == ZERO_DIGEST

    async def reveal(self, epoch: int) -> None:
        """Reveals an epoch's secret on the ledger, which the contract allows only after the next commitment."""
        await self._ledger.audits.reveal(pool_id=self._pool_id, epoch=epoch, secret=self.secret(epoch))

    def _commitment_of(self, epoch: int) -> Digest:
        return commitment_of(pool_id=self._pool_id, validator=self.validator, epoch=epoch, secret=self.secret(epoch))

    async def _commitment(self, epoch: int, *, settled_at: int) -> Commitment | None:
        if epoch in self._remembered:
            return self._remembered[epoch]
        found = await self._ledger.audits.get(pool_id=self._pool_id, validator=self.validator, epoch=epoch)
        # This method caches the absence of a skipped epoch (epoch numbers only grow, so the epoch stays skipped) and a
        # commitment with enough blocks on top; a newer commitment may still disappear in a reorg.
        if found is None or found.block <= settled_at:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
                self._blocks.clear()
            self._remembered[epoch] = found
            if found is not None:
                bisect.insort(self._blocks, (found.block, epoch))
        return found

    def _known_before(self, block: int) -> int | None:
        """Returns the epoch whose secret draws the rows of work submitted in a block, using only the cache.

        Returns None unless the next epoch's commitment is also cached, because that commitment ends the epoch.
        """
        place = bisect.bisect_left(self._blocks, (block, 0))
        if not 0 < place < len(self._blocks):
            return None
        (_, epoch), (_, following) = self._blocks[place - 1 : place + 1]
        return epoch if following == epoch + 1 else None
