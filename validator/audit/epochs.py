"""The validator's secrets, epoch by epoch. They follow from its key, so none is stored and none is lost with a disk.

A secret is SHA-256 of the key's signature over a text that names chain, contract, pool and epoch. Signatures are
deterministic (RFC 6979), so the same key makes the same secrets on every machine; one that is revealed tells nothing of
the others. The ledger says what was committed (`ledger/contracts/AuditSecrets.sol`, decisions 8 and 28).
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
"""Another tag makes other secrets: what was committed before could not be revealed."""

MOST_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSecret:
    """One epoch's secret, and since when the validator is bound to it.

    Args:
        epoch: Counts from 1, for each validator and pool.
        block: Of the commitment: the secret draws for submissions in later blocks.
        secret: 32 bytes. Nobody else may see them before the next epoch is committed.
    """

    epoch: int
    block: int
    secret: bytes = field(repr=False)


def secret_of(key: Key, *, chain_id: int, contract: Address, pool_id: int, epoch: int) -> bytes:
    """The 32 bytes that `key` draws with in an epoch.

    Args:
        key: The validator's.
        chain_id: The chain.
        contract: `AuditSecrets` on it.
        pool_id: The pool.
        epoch: The epoch.
    """
    text = "\n".join((TAG, str(chain_id), contract, str(pool_id), str(epoch)))
    return hashlib.sha256(TAG.encode() + key.sign_message(text.encode())).digest()


class Epochs:
    """One validator's epochs in one pool.

    Args:
        ledger: To read; `commit_next` and `reveal` need it to hold the validator's key.
        key: The validator's.
        pool_id: The pool.
        settled: How many blocks must lie on a commitment before it is remembered: the pool's confirmations.
    """

    def __init__(self, ledger: Ledger, key: Key, *, pool_id: int, settled: int = 0) -> None:
        self._ledger = ledger
        self._key = key
        self._pool_id = pool_id
        self._settled = settled
        self.validator = key.address
        self._remembered: dict[int, Commitment | None] = {}
        self._blocks: list[tuple[int, int]] = []
        """Of remembered commitments, each with its epoch; ascending."""

    def secret(self, epoch: int) -> bytes:
        """This validator's secret of an epoch, committed or not."""
        deployment = self._ledger.deployment
        return secret_of(
            self._key,
            chain_id=deployment.chain_id,
            contract=self._ledger.audits.at,
            pool_id=self._pool_id,
            epoch=epoch,
        )

    async def latest(self) -> int:
        """The newest epoch that was committed; 0 before the first."""
        return await self._ledger.audits.latest(pool_id=self._pool_id, validator=self.validator)

    async def secret_before(self, block: int) -> EpochSecret | None:
        """The secret that draws for a submission in `block`: of the newest epoch that was committed before that block.

        None if there is none, or if this key's software committed to something else: then every row is computed again.

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
            TransactionReverted: Another process with the same key began it at this moment, or this is no validator.
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
        """Shows an epoch's secret; refused by the contract while the epoch goes on."""
        await self._ledger.audits.reveal(pool_id=self._pool_id, epoch=epoch, secret=self.secret(epoch))

    def _commitment_of(self, epoch: int) -> Digest:
        return commitment_of(pool_id=self._pool_id, validator=self.validator, epoch=epoch, secret=self.secret(epoch))

    async def _commitment(self, epoch: int, *, settled_at: int) -> Commitment | None:
        if epoch in self._remembered:
            return self._remembered[epoch]
        found = await self._ledger.audits.get(pool_id=self._pool_id, validator=self.validator, epoch=epoch)
        # An epoch that was passed over is so for ever: numbers only grow. A fresh one may go with a reorganisation.
        if found is None or found.block <= settled_at:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
                self._blocks.clear()
            self._remembered[epoch] = found
            if found is not None:
                bisect.insort(self._blocks, (found.block, epoch))
        return found

    def _known_before(self, block: int) -> int | None:
        """The epoch that draws for a block, if it and the next one are remembered: then nobody has to be asked."""
        place = bisect.bisect_left(self._blocks, (block, 0))
        if not 0 < place < len(self._blocks):
            return None
        (_, epoch), (_, following) = self._blocks[place - 1 : place + 1]
        return epoch if following == epoch + 1 else None
