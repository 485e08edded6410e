"""Typed calls of discovery's Lua scripts: the class `RegisterNode` runs `register_node.lua`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.identifiers import Address
from protocol.redis.script_call import ScriptCall


class Registered(NamedTuple):
    """Outcome of a registration."""

    refused: str
    """Limit that refused the node, `origin`, `pool` or `federated`; `older` if a newer registration is stored, `left`
    if a newer removal is; empty if the record was stored."""
    wait_s: int
    """Seconds until the limit of the origin allows another node; 0 if that limit did not refuse the node."""
    first_seen_ms: int
    """Time of the node's first registration, in Unix milliseconds; 0 if the node was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode(ScriptCall[Registered]):
    """Stores or refreshes a node's record.

    Args:
        address: Address of the node.
        pool: Number of the pool that the node wants to join.
        registration: Registration as JSON.
        ip: Source address of the request; unused if it is not direct.
        origin: Group of source addresses in which the node is counted, see `origin_of`; unused if it is not direct.
        now_ms: Current time, in Unix milliseconds.
        life_ms: Milliseconds until the record expires.
        most_per_origin: Maximum number of nodes from one origin.
        most_per_pool: Maximum number of records of one pool.
        direct: Whether the node sent the request to this service; False if a peer passed it on.
        source: URL of the peer that passed the request on; unused if it is direct.
        most_federated: Maximum number of records and marks from this peer.
        most_federated_bytes: Maximum bytes of the records and marks from this peer.
        signed_ms: Time at which the node signed the request, in Unix milliseconds.
        audience: Address of the service for which the node signed the request.
        nonce: Nonce of the request.
        signature: Signature of the request; empty if other services could not check it.
    """

    address: Address
    pool: str
    registration: str
    ip: str
    origin: str
    now_ms: int
    life_ms: int
    most_per_origin: int
    most_per_pool: int
    direct: bool
    source: str
    most_federated: int
    most_federated_bytes: int
    signed_ms: int
    audience: Address
    nonce: str
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode(ScriptCall[int]):
    """Deletes a node's record and invites, and marks the node as removed.

    Replies with the number of deleted keys.

    Args:
        address: Address of the node.
        now_ms: Current time, in Unix milliseconds.
        life_ms: Milliseconds for which the mark is kept.
        direct: Whether the node sent the request to this service; False if a peer passed it on.
        source: URL of the peer that passed the request on; unused if it is direct.
        most_federated: Maximum number of records and marks from this peer.
        most_federated_bytes: Maximum bytes of the records and marks from this peer.
        signed_ms: Time at which the node signed the request, in Unix milliseconds.
        audience: Address of the service for which the node signed the request.
        nonce: Nonce of the request.
        signature: Signature of the request; empty if other services could not check it, and then no mark is made.
        on_ledger: Whether the node is registered on the ledger.
        most_unknown: Number of marks from which a node gets one only if it has a record or is on the ledger.
    """

    address: Address
    now_ms: int
    life_ms: int
    direct: bool
    source: str
    most_federated: int
    most_federated_bytes: int
    signed_ms: int
    audience: Address
    nonce: str
    signature: str
    on_ledger: bool
    most_unknown: int


class RecordPage(NamedTuple):
    """One page of a pool's records."""

    last: str
    """Address of the last record that was read, even if it has expired; empty if fewer than `limit` were read."""
    records: tuple[dict[str, str], ...]
    """Fields of each record's Redis hash, with its `address`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(ScriptCall[RecordPage]):
    """Lists the records of a pool in the order of addresses, without expired ones.

    Args:
        pool: Number of the pool.
        after: Address after which the list begins; empty to begin with the first record.
        limit: Maximum number of records that are read, expired ones included.
        now_ms: Current time, in Unix milliseconds.
    """

    pool: str
    after: str
    limit: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListStatements(ScriptCall[RecordPage]):
    """Lists the signed statements that other services may get, in the order of the nodes' addresses.

    Args:
        after: Address after which the list begins; empty to begin with the first node.
        limit: Maximum number of statements that are read, expired ones included.
        now_ms: Current time, in Unix milliseconds.
    """

    after: str
    limit: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStatements(ScriptCall[tuple[str, ...]]):
    """Replies with time and signature of each node's newest statement, with a space between; empty if there is none."""

    now_ms: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneExpired(ScriptCall[int]):
    """Deletes up to `limit` expired records and marks of removals; replies with the number of deleted records."""

    now_ms: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PostInvite(ScriptCall[str]):
    """Stores an invite for a node; replies `posted`, `unknown-node` or `other-pool`.

    Args:
        node: Address of the node.
        pool: Number of the pool that invites the node.
        invite: Invite as JSON.
        now_ms: Current time, in Unix milliseconds.
        now_s: Current time, in Unix seconds.
        expiry_s: Expiry of the invite, in Unix seconds.
        most_invites: Maximum number of stored invites for one node; the latest expiries are kept.
        channel: Redis channel on which all instances listen for new invites.
    """

    node: Address
    pool: str
    invite: str
    now_ms: int
    now_s: int
    expiry_s: int
    most_invites: int
    channel: str
