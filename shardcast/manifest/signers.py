"""Addresses whose signatures of versions are accepted.

These are the address of the publisher's present key and, until a given time, the address of the former key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from protocol.identifiers import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Signers:
    """Addresses of the publisher's keys, as the ledger has them in the pool's publisher role.

    Args:
        publisher: Address of the present key.
        former: Address of the key before the last rotation; None if the key was never rotated.
        former_until: Time until which signatures of the former key are accepted; None accepts no such signatures.
    """

    publisher: Address
    former: Address | None = None
    former_until: datetime | None = None

    def former_at(self, now: datetime) -> tuple[Address, ...]:
        """Returns a tuple with the former key's address, or () if the former key is not accepted at this time."""
        counts = self.former is not None and self.former_until is not None and now < self.former_until
        return (self.former,) if counts and self.former is not None else ()

    def accepted_at(self, now: datetime) -> tuple[Address, ...]:
        """Returns all addresses that are accepted at this time, the present publisher first."""
        return (self.publisher, *self.former_at(now))


def signers_of(signer: Address | Signers) -> Signers:
    """Converts an address to `Signers` without a former key; returns `Signers` unchanged."""
    return signer if isinstance(signer, Signers) else Signers(publisher=signer)
