"""The ledger's events as typed values: one class for each, in the order of the contracts.

A class is called what the contract calls its event, and its fields stand in the order of the parameters, so that the
ABI alone decides how a log is read (`ledger.events.decoder`).
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
    """Why a node is no member any more."""

    LEFT = 0
    REMOVED = 1
    """Without blame: it was dead."""
    EVICTED = 2
    BANNED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvent:
    """What all events have."""

    log: EventLog
    """Where it stands on the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered(LedgerEvent):
    """A provider put a node in service."""

    provider: Address
    node: Address
    specs_hash: Digest
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpdated(LedgerEvent):
    """A provider described a node anew."""

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
    """Somebody added to a provider's stake."""

    provider: Address
    giver: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnbondStarted(LedgerEvent):
    """A provider asked for stake back."""

    provider: Address
    id: int
    amount: int
    matures_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UnbondCancelled(LedgerEvent):
    """A provider left stake in after all."""

    provider: Address
    id: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(LedgerEvent):
    """Matured stake went back."""

    provider: Address
    to: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slashed(LedgerEvent):
    """Stake was taken; without a recipient it was burned."""

    provider: Address
    recipient: Address | None
    asked: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksChanged(LedgerEvent):
    """What memberships and open work bind of a provider's stake, after a membership began or ended."""

    provider: Address
    membership_lock: int
    work_lock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSet(LedgerEvent):
    """A domain was made or described anew."""

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
    """A pool was made."""

    pool_id: int
    domain_id: int
    owner: Address
    data_uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolActivated(LedgerEvent):
    """A pool was opened."""

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
    """A role has another key; the former one counts until `previous_until`."""

    pool_id: int
    role: int
    key: Address
    previous: Address | None
    previous_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorAdded(LedgerEvent):
    """A key may give verdicts."""

    pool_id: int
    validator: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorRemoved(LedgerEvent):
    """A key may give no verdicts from `until` on."""

    pool_id: int
    validator: Address
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowFunded(LedgerEvent):
    """A pool can pay more."""

    pool_id: int
    giver: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawalAnnounced(LedgerEvent):
    """An owner will take up to `amount` of the free escrow out between these times; zero cancels it."""

    pool_id: int
    amount: int
    ready_at: datetime
    lapses_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowWithdrawn(LedgerEvent):
    """An owner took free escrow out."""

    pool_id: int
    to: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined(LedgerEvent):
    """A node redeemed an invite."""

    pool_id: int
    node: Address
    provider: Address
    nonce: int
    stake_lock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft(LedgerEvent):
    """A node is no member any more."""

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
    """A node may not join any more."""

    pool_id: int
    node: Address
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnbanned(LedgerEvent):
    """A node may join again."""

    pool_id: int
    node: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderBanned(LedgerEvent):
    """No node of a provider may join or work any more."""

    pool_id: int
    provider: Address
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderUnbanned(LedgerEvent):
    """A provider's nodes may join again."""

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
    """A validator judged work; a decisive verdict ended a dispute."""

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
    """A validator contradicted the first verdict in a dispute; a second one decides."""

    pool_id: int
    node: Address
    key: Digest
    validator: Address
    outcome: Outcome
    reason: int
    audit_hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictConfirmed(LedgerEvent):
    """Another validator examined the work and agrees with the first verdict."""

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
    """A rejection that node or provider had disputed stands; `taken` is what that cost their stake."""

    pool_id: int
    node: Address
    key: Digest
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFinal(LedgerEvent):
    """Work was paid or slashed, or neither."""

    pool_id: int
    node: Address
    key: Digest
    outcome: Outcome
    paid: int
    slashed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkExpired(LedgerEvent):
    """Nobody judged the work in time."""

    pool_id: int
    node: Address
    key: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardsClaimed(LedgerEvent):
    """A provider took its rewards out of a pool."""

    pool_id: int
    provider: Address
    to: Address
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretCommitted(LedgerEvent):
    """A validator committed to an epoch's secret."""

    pool_id: int
    validator: Address
    epoch: int
    commitment: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRevealed(LedgerEvent):
    """A validator revealed an epoch's secret."""

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
"""Every event that somebody may want to follow, by the contract that emits it."""
