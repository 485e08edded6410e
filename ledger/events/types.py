"""Typed ledger events: one class per event, in the order of the contracts.

A class has the name of its Solidity event, and its fields have the order of the event's parameters, so that
`ledger.events.decoder` can decode logs by the ABI alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from ledger.artifacts import Contract
from ledger.transactions.receipts import EventLog
from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome


class Departure(IntEnum):
    """Cause of the end of a membership."""

    LEFT = 0
    REMOVED = 1
    """The node was removed because it was dead, not for misconduct."""
    EVICTED = 2
    BANNED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvent:
    """Base class of all events."""

    log: EventLog
    """The raw log, with its block and transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered(LedgerEvent):
    """A provider registered a node."""

    provider: Address
    node: Address
    specs_hash: Digest
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpdated(LedgerEvent):
    """A provider updated a node's hardware description or capacity."""

    provider: Address
    node: Address
    specs_hash: Digest
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRetired(LedgerEvent):
    """A provider took a node out of service."""

    provider: Address
    node: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Staked(LedgerEvent):
    """An account added to a provider's stake."""

    provider: Address
    giver: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnbondStarted(LedgerEvent):
    """A provider began to unbond stake."""

    provider: Address
    id: int
    amount: int
    matures_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UnbondCancelled(LedgerEvent):
    """A provider cancelled an unbond; its amount is active stake again."""

    provider: Address
    id: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(LedgerEvent):
    """A provider withdrew matured stake."""

    provider: Address
    to: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slashed(LedgerEvent):
    """Stake was slashed: `taken` went to the recipient, or was burned if `recipient` is None."""

    provider: Address
    recipient: Address | None
    asked: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksChanged(LedgerEvent):
    """Locked stake of a provider, after one of its memberships began or ended."""

    provider: Address
    membership_lock: int
    work_lock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSet(LedgerEvent):
    """A domain was created or updated."""

    domain_id: int
    name: str
    uri: str
    validation_hash: Digest
    reserve: Address | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainActiveSet(LedgerEvent):
    """A domain was opened or closed."""

    domain_id: int
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCreated(LedgerEvent):
    """A pool was created."""

    pool_id: int
    domain_id: int
    owner: Address
    data_uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolActivated(LedgerEvent):
    """A pool was activated."""

    pool_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEnded(LedgerEvent):
    """A pool was ended."""

    pool_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTransferred(LedgerEvent):
    """A pool has another owner."""

    pool_id: int
    former: Address
    owner: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSet(LedgerEvent):
    """A role's key was rotated; the previous key stays valid until `previous_until`."""

    pool_id: int
    role: int
    key: Address
    previous: Address | None
    previous_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorAdded(LedgerEvent):
    """A validator was added to a pool."""

    pool_id: int
    validator: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorRemoved(LedgerEvent):
    """A validator was removed; it may give verdicts until `until`."""

    pool_id: int
    validator: Address
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowFunded(LedgerEvent):
    """An account added money to a pool's escrow."""

    pool_id: int
    giver: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawalAnnounced(LedgerEvent):
    """A pool owner announced a withdrawal of up to `amount` from `ready_at` to `lapses_at`; amount 0 cancels it."""

    pool_id: int
    amount: int
    ready_at: datetime
    lapses_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowWithdrawn(LedgerEvent):
    """A pool owner withdrew free escrow."""

    pool_id: int
    to: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined(LedgerEvent):
    """A node joined a pool with an invite."""

    pool_id: int
    node: Address
    provider: Address
    nonce: int
    stake_lock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(LedgerEvent):
    """A node's membership ended."""

    pool_id: int
    node: Address
    provider: Address
    cause: Departure
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRefused(LedgerEvent):
    """One item of a batch of joins was refused."""

    pool_id: int
    node: Address
    reason: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBanned(LedgerEvent):
    """A node was banned and can't join the pool."""

    pool_id: int
    node: Address
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnbanned(LedgerEvent):
    """A node's ban was lifted."""

    pool_id: int
    node: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderBanned(LedgerEvent):
    """A provider was banned: none of its nodes can join or work."""

    pool_id: int
    provider: Address
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderUnbanned(LedgerEvent):
    """A provider's ban was lifted."""

    pool_id: int
    provider: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAnnounced(LedgerEvent):
    """A publisher announced a version of a run's policy."""

    pool_id: int
    run: Digest
    version: int
    attempt: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSubmitted(LedgerEvent):
    """A node submitted work under a lease."""

    pool_id: int
    node: Address
    key: Digest
    run: Digest
    step: int
    index: int
    version: int
    checkpoint: Digest
    beacon_block: int
    salt: Digest
    groups: int
    max_units: int
    sha256: Digest
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRefused(LedgerEvent):
    """One item of a batch of submissions was refused."""

    key: Digest
    reason: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictGiven(LedgerEvent):
    """A validator gave a verdict; if `decisive` is True, the verdict ended a dispute and made the work final."""

    pool_id: int
    node: Address
    key: Digest
    validator: Address
    outcome: Outcome
    reason: int
    audit_hash: Digest
    decisive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictContradicted(LedgerEvent):
    """A validator contradicted the first verdict in a dispute; a second validator then decides."""

    pool_id: int
    node: Address
    key: Digest
    validator: Address
    outcome: Outcome
    reason: int
    audit_hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictConfirmed(LedgerEvent):
    """Another validator took a second look and agrees with the first verdict."""

    pool_id: int
    node: Address
    key: Digest
    validator: Address
    reason: int
    audit_hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRefused(LedgerEvent):
    """One item of a batch of verdicts was refused."""

    key: Digest
    validator: Address
    reason: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDisputed(LedgerEvent):
    """A verdict was disputed."""

    pool_id: int
    node: Address
    key: Digest
    disputer: Address
    evidence_hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class DisputeLost(LedgerEvent):
    """A rejection that the node or its provider disputed was upheld; `taken` was slashed for the lost dispute."""

    pool_id: int
    node: Address
    key: Digest
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFinal(LedgerEvent):
    """Work became final: paid, slashed, or neither."""

    pool_id: int
    node: Address
    key: Digest
    outcome: Outcome
    paid: int
    slashed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkExpired(LedgerEvent):
    """Work expired because no validator judged it in time."""

    pool_id: int
    node: Address
    key: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardsClaimed(LedgerEvent):
    """A provider claimed its rewards in a pool."""

    pool_id: int
    provider: Address
    to: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretCommitted(LedgerEvent):
    """A validator committed to its secret of an epoch."""

    pool_id: int
    validator: Address
    epoch: int
    commitment: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRevealed(LedgerEvent):
    """A validator revealed its secret of an epoch."""

    pool_id: int
    validator: Address
    epoch: int
    secret: Digest


EVENTS: Mapping[Contract, tuple[type[LedgerEvent], ...]] = {
    Contract.COMPUTE_REGISTRY: (NodeRegistered, NodeUpdated, NodeRetired),
    Contract.STAKE_MANAGER: (Staked, UnbondStarted, UnbondCancelled, Withdrawn, Slashed, LocksChanged),
    Contract.DOMAIN_REGISTRY: (DomainSet, DomainActiveSet),
    Contract.COMPUTE_POOLS: (
        PoolCreated,
        PoolActivated,
        PoolEnded,
        PoolTransferred,
        RoleSet,
        ValidatorAdded,
        ValidatorRemoved,
        EscrowFunded,
        WithdrawalAnnounced,
        EscrowWithdrawn,
        MemberJoined,
        MemberLeft,
        JoinRefused,
        NodeBanned,
        NodeUnbanned,
        ProviderBanned,
        ProviderUnbanned,
    ),
    Contract.CHECKPOINTS: (CheckpointAnnounced,),
    Contract.WORK_LEDGER: (
        WorkSubmitted,
        WorkRefused,
        VerdictGiven,
        VerdictContradicted,
        VerdictConfirmed,
        VerdictRefused,
        WorkDisputed,
        DisputeLost,
        WorkFinal,
        WorkExpired,
        RewardsClaimed,
    ),
    Contract.AUDIT_SECRETS: (SecretCommitted, SecretRevealed),
}
"""The event types of each contract."""
