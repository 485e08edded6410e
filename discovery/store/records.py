"""What discovery knows of a node: what the node said, where it was seen from, and what the ledger says. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta

from protocol.errors import InvalidInput
from protocol.identifiers import Address, address
from protocol.wire.nodes import NodeRecord, Registration

MOST_PER_PAGE = 200
DEFAULT_PER_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A node's record as it is kept."""

    address: Address
    registration: Registration
    ip: str
    first_seen_ms: int
    last_seen_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the ledger said of a node, as far as its events were read."""

    provider: Address | None = None
    stake: int = 0
    """The provider's active stake, in the token's smallest unit."""
    banned: bool = False
    """Whether the pool banned the node or its provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsAge:
    """How fresh the facts are."""

    as_of_ms: int
    """When the events were last read up to the chain's head; 0 for never."""

    def is_stale(self, *, now: datetime, after: timedelta) -> bool:
        """Whether the facts are older than `after`."""
        return now.timestamp() * 1000 - self.as_of_ms > after.total_seconds() * 1000


def shown(record: StoredRecord, facts: NodeFacts, age: FactsAge) -> NodeRecord:
    """The record as those see it who may."""
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
    )


def origin_of(ip: str) -> str:
    """Who is behind an IP, for limits: the IP itself, or its /64, because whoever has one IPv6 address has them all."""
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
    """Where a page begins: after this address; None for the first page.

    Raises:
        InvalidInput: The cursor is none that a page gave.
    """
    if text is None:
        return None
    try:
        return address(text)
    except InvalidInput as error:
        raise InvalidInput("this cursor is none of ours", hint="pass on `next_cursor` of the last page") from error
