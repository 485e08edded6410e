"""Accepted signers of versions: the publisher, and its former key until a stated time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from protocol.identifiers import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Signers:
    """Publisher keys as the pool's role on the ledger names them.

    Args:
        publisher: Signs now.
        former: Key before the rotation; None if there was none, or if its signatures are not accepted.
        former_until: When its signatures stop to count; None if they have.
    """

    publisher: Address
    former: Address | None = None
    former_until: datetime | None = None

    def former_at(self, now: datetime) -> tuple[Address, ...]:
        """Former key while it is accepted."""
        counts = self.former is not None and self.former_until is not None and now < self.former_until
        return (self.former,) if counts and self.former is not None else ()

    def accepted_at(self, now: datetime) -> tuple[Address, ...]:
        """Returns all accepted signers, the publisher first."""
        return (self.publisher, *self.former_at(now))


def signers_of(signer: Address | Signers) -> Signers:
    """One address is a publisher that was never rotated."""
    return signer if isinstance(signer, Signers) else Signers(publisher=signer)
