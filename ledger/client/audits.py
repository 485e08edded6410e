"""Audit secrets of validators: committed before an epoch and revealed after it.

With the revealed secret anyone can recompute which rows the validator had to draw for its audits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from ledger.client.contract import BoundContract
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_DIGEST, Address, Digest, digest


@dataclass(frozen=True, slots=True)
class Commitment:
    """A validator's commitment for one epoch; `secret` is zero until it is revealed."""

    commitment: Digest
    secret: Digest
    block: int
    committed_at: datetime
    revealed_at: datetime


def commitment_of(*, pool_id: int, validator: Address, epoch: int, secret: bytes) -> Digest:
    """Returns the commitment to a secret: Keccak-256 of the ABI encoding of (pool, validator, epoch, secret).

    Args:
        pool_id: The pool.
        validator: The validator that will reveal the secret.
        epoch: The epoch in which the validator draws audited rows with the secret.
        secret: 32 random bytes.
    """
    encoded = encode(["uint256", "address", "uint64", "bytes32"], [pool_id, validator, epoch, secret])
    return digest(keccak(encoded))


class AuditSecrets:
    """Client of the `AuditSecrets` contract: reads, makes and reveals commitments."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def get(self, *, pool_id: int, validator: Address, epoch: int) -> Commitment | None:
        """Returns a validator's commitment for an epoch; None if the validator made none."""
        found = await self._contract.read_struct(Commitment, "commitmentOf", pool_id, validator, epoch)
        return None if found.commitment == ZERO_DIGEST else found

    async def latest(self, *, pool_id: int, validator: Address) -> int:
        """Returns the newest epoch that a validator committed to; 0 if none."""
        return await self._contract.read_number("latestEpochOf", pool_id, validator)

    async def commit(self, *, pool_id: int, epoch: int, commitment: Digest) -> Receipt:
        """Commits the calling validator to its secret for an epoch.

        The epoch must be later than all epochs to which the validator has committed before.
        """
        return await self._contract.send("commit", pool_id, epoch, commitment)

    async def reveal(self, *, pool_id: int, epoch: int, secret: bytes) -> Receipt:
        """Reveals the calling validator's secret for an epoch that is over."""
        return await self._contract.send("reveal", pool_id, epoch, secret)
