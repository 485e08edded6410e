"""The validator's audit secrets, one per epoch. They derive from its key, so none is stored or lost.

A secret is the SHA-256 of the key's signature over a text with chain, contract, pool and epoch. Signatures are
deterministic (RFC 6979), so a key derives the same secrets on every machine; a revealed secret discloses nothing about
the others. The ledger holds the commitments (`ledger/contracts/AuditSecrets.sol`, decisions 8 and 28).
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
"""Domain separation tag. With another tag, committed secrets could not be revealed."""

MOST_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSecret:
    """The secret of one epoch, and the block of its commitment.

    Args:
        epoch: Number from 1, for each validator and pool.
        block: Block of the commitment; the secret draws for submissions in later blocks.
        secret: 32 bytes that must stay private until the next epoch is committed.
    """

    epoch: int
    block: int
    secret: bytes = field(repr=False)


def secret_of(key: Key, *, chain_id: int, contract: Address, pool_id: int, epoch: int) -> bytes:
    """Returns the secret of 32 bytes that `key` has in an epoch.

    Args:
        key: The validator's key.
        chain_id: The chain.
        contract: Address of `AuditSecrets` on it.
        pool_id: The pool.
        epoch: The epoch.
    """
    text = "\n".join((TAG, str(chain_id), contract, str(pool_id), str(epoch)))
    return hashlib.sha256(TAG.encode() + key.sign_message(text.encode())).digest()


class Epochs:
    """The epochs of one validator in one pool.

    Args:
        ledger: Ledger client; `commit_next` and `reveal` need the validator's key in it.
        key: The validator's key.
        pool_id: The pool.
        settled: Confirmations of a commitment before it is cached.
    """

    def __init__(self, ledger: Ledger, key: Key, *, pool_id: int, settled: int = 0) -> None:
        self._ledger = ledger
        self._key = key
        self._pool_id = pool_id
        self._settled = settled
        self.validator = key.address
        self._remembered: dict[int, Commitment | None] = {}
        self._blocks: list[tuple[int, int]] = []
        """Blocks of cached commitments, each with its epoch; ascending."""

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
        """Returns the secret for a submission in `block`: of the newest epoch that was committed before that block.

        None if there is none, or if the commitment does not derive from this key: then all rows are recomputed.

        Raises:
            ChainUnavailable: The chain can't be asked.
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
        """Begins the next epoch and returns its number.

        Raises:
            TransactionReverted: Another process with the same key was faster, or the key is not a validator.
            ChainUnavailable: The chain can't be asked.
        """
        epoch = await self.latest() + 1
        await self._ledger.audits.commit(pool_id=self._pool_id, epoch=epoch, commitment=self._commitment_of(epoch))
        return epoch

    async def is_ours_to_reveal(self, epoch: int) -> bool:
        """Returns whether an epoch's secret derives from this key and is not revealed yet."""
        found = await self._ledger.audits.get(pool_id=self._pool_id, validator=self.validator, epoch=epoch)
        if found is None or found.commitment != self._commitment_of(epoch):
            return False
        return found.secret == ZERO_DIGEST

    async def reveal(self, epoch: int) -> None:
        """Reveals an epoch's secret; the contract refuses it until the next epoch is committed."""
        await self._ledger.audits.reveal(pool_id=self._pool_id, epoch=epoch, secret=self.secret(epoch))

    def _commitment_of(self, epoch: int) -> Digest:
        return commitment_of(pool_id=self._pool_id, validator=self.validator, epoch=epoch, secret=self.secret(epoch))

    async def _commitment(self, epoch: int, *, settled_at: int) -> Commitment | None:
        if epoch in self._remembered:
            return self._remembered[epoch]
        found = await self._ledger.audits.get(pool_id=self._pool_id, validator=self.validator, epoch=epoch)
        # Epoch numbers only grow, so a skipped epoch stays skipped. A fresh commitment may disappear in a reorg.
        if found is None or found.block <= settled_at:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
                self._blocks.clear()
            self._remembered[epoch] = found
            if found is not None:
                bisect.insort(self._blocks, (found.block, epoch))
        return found

    def _known_before(self, block: int) -> int | None:
        """Returns the epoch that draws for a block if it and the next one are cached, so that no read is needed."""
        place = bisect.bisect_left(self._blocks, (block, 0))
        if not 0 < place < len(self._blocks):
            return None
        (_, epoch), (_, following) = self._blocks[place - 1 : place + 1]
        return epoch if following == epoch + 1 else None
