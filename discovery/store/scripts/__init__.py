"""Typed calls of discovery's Lua scripts: the class `RegisterNode` runs `register_node.lua`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.identifiers import Address
from protocol.redis.script_call import ScriptCall


class Registered(NamedTuple):
    """Outcome of a registration."""

    refused: str
    """Limit that refused the node: `origin` or `pool`; empty if the record was stored."""
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
        ip: Source address of the request.
        origin: Group of source addresses in which the node is counted; see `origin_of`.
        now_ms: Current time, in Unix milliseconds.
        life_ms: Milliseconds until the record expires.
        most_per_origin: Maximum number of nodes from one origin.
        most_per_pool: Maximum number of records of one pool.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode(ScriptCall[int]):
    """Deletes a node's record and invites."""

    address: Address


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
class PruneExpired(ScriptCall[int]):
    """Deletes up to `limit` expired records; replies with the number of deleted records."""

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
