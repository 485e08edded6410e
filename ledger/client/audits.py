"""Validators' secrets: committed before an epoch, revealed after it, so that anybody can recompute the audit's draw."""

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
    """A validator's secret of one epoch; `secret` is zero until it is revealed."""

    commitment: Digest
    secret: Digest
    block: int
    committed_at: datetime
    revealed_at: datetime


def commitment_of(*, pool_id: int, validator: Address, epoch: int, secret: bytes) -> Digest:
    """Keccak-256 of the ABI encoding of (pool, validator, epoch, secret): what is committed to.

    Args:
        pool_id: The pool.
        validator: Who will reveal.
        epoch: The epoch the secret draws for.
        secret: 32 random bytes.
    """
    encoded = encode(["uint256", "address", "uint64", "bytes32"], [pool_id, validator, epoch, secret])
    return digest(keccak(encoded))


class AuditSecrets:
    """Commitments and revelations."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def get(self, *, pool_id: int, validator: Address, epoch: int) -> Commitment | None:
        """A validator's commitment; None if it made none for the epoch."""
        found = await self._contract.read_struct(Commitment, "commitmentOf", pool_id, validator, epoch)
        return None if found.commitment == ZERO_DIGEST else found

    async def latest(self, *, pool_id: int, validator: Address) -> int:
        """The newest epoch that a validator committed to; 0 if none."""
        return await self._contract.read_number("latestEpochOf", pool_id, validator)

    async def commit(self, *, pool_id: int, epoch: int, commitment: Digest) -> Receipt:
        """Commits the caller, a validator, to a secret for an epoch later than its last."""
        return await self._contract.send("commit", pool_id, epoch, commitment)

    async def reveal(self, *, pool_id: int, epoch: int, secret: bytes) -> Receipt:
        """Reveals the caller's secret of an epoch that is over."""
        return await self._contract.send("reveal", pool_id, epoch, secret)
