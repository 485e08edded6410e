"""Records of nodes: registration, source IP and ledger facts. No I/O."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta

from protocol.errors import InvalidInput
from protocol.identifiers import Address, address
from protocol.wire.nodes import NodeRecord, Registration

MOST_PER_PAGE = 200
"""Largest page of nodes that a caller may ask for."""
DEFAULT_PER_PAGE = 100
"""Number of nodes of a page if the caller names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A node's record as it is stored in Redis, without ledger facts.

    Times are in Unix milliseconds.
    """

    address: Address
    registration: Registration
    ip: str
    """Source IP; empty if the node registered with another service only."""
    first_seen_ms: int
    last_seen_ms: int
    expires_at_ms: int
    signed_for: Address | None
    """Service to which the node sent the registration; None if an older release stored the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Cached facts from the ledger about a node."""

    provider: Address | None = None
    """Provider that registered the node; None if none did."""
    stake: int = 0
    """Active stake of the provider, in 10⁻¹⁸ MUST."""
    banned: bool = False
    """Whether the pool bans the node or its provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsAge:
    """Time of the cached ledger facts, from which their age follows."""

    as_of_ms: int
    """Time of the last read of events up to the chain's head, in Unix milliseconds; 0 if there was none."""

    def is_stale(self, *, now: datetime, after: timedelta) -> bool:
        """Returns whether the facts are older than `after`."""
        return now.timestamp() * 1000 - self.as_of_ms > after.total_seconds() * 1000


def shown(record: StoredRecord, facts: NodeFacts, age: FactsAge) -> NodeRecord:
    """Combines a stored record and ledger facts into the record that the API returns to authorised readers."""
    return NodeRecord(
        address=record.address,
        registration=record.registration,
        ip=record.ip,
        first_seen_ms=record.first_seen_ms,
        last_seen_ms=record.last_seen_ms,
        expires_at_ms=record.expires_at_ms,
        provider=facts.provider,
        stake=str(facts.stake),
        banned=facts.banned,
        facts_as_of_ms=age.as_of_ms,
        signed_for=record.signed_for,
    )


def origin_of(ip: str) -> str:
    """Returns the group of source addresses in which an IP is counted for the limit of nodes.

    The group is the IPv4 address itself, or the /64 of an IPv6 address, because one customer usually controls a whole
    /64. Any text that is not an IP gives `local`: a caller over a Unix socket has no IP.
    """
    try:
        parsed = ipaddress.ip_address(ip)
    except ValueError:
        return "local"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return ipaddress.ip_network((int(parsed) >> 64 << 64, 64)).network_address.exploded.replace(":", "-")
    return str(parsed)


def read_cursor(text: str | None) -> Address | None:
    """Parses a cursor into the address after which a page begins; None for the first page.

    Raises:
        InvalidInput: The cursor was not issued by this service.
    """
    if text is None:
        return None
    try:
        return address(text)
    except InvalidInput as error:
        raise InvalidInput(
            "this service did not issue the cursor", hint="pass the `next_cursor` of the previous page"
        ) from error
