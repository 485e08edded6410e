"""Accepted signers of versions: the publisher, and its former key until a stated time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from protocol.identifiers import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Signers:
    """Publisher keys, as the pool's role on the ledger names them.

    Args:
        publisher: The present publisher.
        former: The publisher before the last rotation; None without one.
        former_until: Time until which the former publisher's signatures are accepted; None if they are not.
    """

    publisher: Address
    former: Address | None = None
    former_until: datetime | None = None

    def former_at(self, now: datetime) -> tuple[Address, ...]:
        """Returns the former publisher while it is accepted, in a tuple."""
        counts = self.former is not None and self.former_until is not None and now < self.former_until
        return (self.former,) if counts and self.former is not None else ()

    def accepted_at(self, now: datetime) -> tuple[Address, ...]:
        """Returns all accepted signers, the publisher first."""
        return (self.publisher, *self.former_at(now))


def signers_of(signer: Address | Signers) -> Signers:
    """Returns `Signers` for an address: a publisher that was never rotated."""
    return signer if isinstance(signer, Signers) else Signers(publisher=signer)
