"""The validator's secrets, epoch by epoch. They follow from its key, so none is stored and none is lost with a disk.

A secret is SHA-256 of the key's signature over a text that names chain, contract, pool and epoch. Signatures are
deterministic (RFC 6979), so the same key makes the same secrets on every machine; one that is revealed tells nothing of
the others. The ledger says what was committed (`ledger/contracts/AuditSecrets.sol`, decisions 8 and 28).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from ledger.client import Ledger
from ledger.client.audits import Commitment, commitment_of
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.keys import Key

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
        self._remembered: OrderedDict[int, Commitment | None] = OrderedDict()

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
        epoch, head = await self.latest(), await self._ledger.block()
        while epoch > 0:
            found = await self._commitment(epoch, settled_at=head - self._settled)
            if found is not None and found.block < block:
                own = found.commitment == self._commitment_of(epoch)
                return EpochSecret(epoch=epoch, block=found.block, secret=self.secret(epoch)) if own else None
            epoch -= 1
        return None

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
        """Whether an epoch's secret follows from this key and is not revealed yet."""
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
            self._remembered[epoch] = found
            if len(self._remembered) > MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        return found
