"""Lua scripts of the discovery service and their typed calls: the class `RegisterNode` runs `register_node.lua`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.identifiers import Address
from protocol.redis.script_call import ScriptCall


class Registered(NamedTuple):
    """Outcome of a registration."""

    refused: str
    """`origin` or `pool`, whichever has no room; empty if the record was stored."""
    wait_s: int
    """Seconds until the origin has room."""
    first_seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode(ScriptCall[Registered]):
    """Stores or refreshes a node's record.

    Args:
        address: Address of the node.
        pool: Pool that it wants to join.
        registration: Registration as JSON.
        ip: Source address of the request.
        origin: Unit of addresses that the limit counts.
        now_ms: Current time, in Unix milliseconds.
        life_ms: Milliseconds until the record expires.
        most_per_origin: Maximum number of nodes of one origin.
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
    """Last address that was read, even if its record had expired; empty on the last page."""
    records: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(ScriptCall[RecordPage]):
    """Lists the records of a pool after an address; an empty address lists from the first record on."""

    pool: str
    after: str
    limit: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneExpired(ScriptCall[int]):
    """Deletes expired records; replies with their number."""

    now_ms: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PostInvite(ScriptCall[str]):
    """Stores an invite for a node; replies `posted`, `unknown-node` or `other-pool`.

    Args:
        node: Address of the node.
        pool: Pool of the invite.
        invite: Invite as JSON.
        now_ms: Current time, in Unix milliseconds.
        now_s: Current time, in Unix seconds.
        expiry_s: Expiry of the invite, in Unix seconds.
        kept_s: Seconds until the node's mailbox expires.
        most_invites: Maximum number of invites of one node.
        channel: Channel on which instances listen for new invites.
    """

    node: Address
    pool: str
    invite: str
    now_ms: int
    now_s: int
    expiry_s: int
    kept_s: int
    most_invites: int
    channel: str
