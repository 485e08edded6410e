"""Pools: terms, roles, escrow and membership."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from ledger.abi_types import struct_from_abi
from ledger.client.contract import BoundContract, Refusal
from ledger.client.token import Token
from ledger.events.types import JoinRefused, PoolCreated
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_ADDRESS, Address, address
from protocol.invites import Invite
from protocol.wire.relayed import JoinRequest

MAX_FEES = 3
"""Maximum number of fees for verdicts and second looks on one work item (`MAX_FEES` of the contracts)."""


class PoolStatus(IntEnum):
    """State of a pool."""

    PENDING = 1
    ACTIVE = 2
    ENDED = 3


class Role(IntEnum):
    """Roles that exactly one key of a pool holds.

    A validator's role is not among them, because a pool may have several validators.
    """

    MANAGER = 0
    ORCHESTRATOR = 1
    PUBLISHER = 2


@dataclass(frozen=True, slots=True)
class Roles:
    """The role keys of a new pool."""

    manager: Address
    orchestrator: Address
    publisher: Address


@dataclass(frozen=True, slots=True)
class Terms:
    """A pool's terms of work. Money is in the token's smallest unit."""

    price_per_unit: int
    penalty_per_unit: int
    stake_per_capacity: int
    audit_floor_bps: int
    """The minimum share of work that is audited, in basis points."""
    look_bps: int
    """The share of first verdicts for which a second look is paid, in basis points."""
    judge_period: timedelta
    challenge_period: timedelta
    dispute_period: timedelta
    notice_period: timedelta
    """Time between the proposal of new terms and their taking effect."""
    max_nodes: int
    min_capacity: int
    verdict_fee: int
    """Fee of a validator for a verdict, or a paid second look, that agrees with the final outcome."""

    @property
    def reserved_fees(self) -> int:
        """The escrow that one work item reserves for verdict fees, in addition to its reward."""
        return MAX_FEES * self.verdict_fee

    @property
    def least_penalty(self) -> int:
        """`price · (1 - q) / q` at audit floor q, rounded up.

        With a lower penalty, forged work pays on average.
        """
        return -(-self.price_per_unit * (10_000 - self.audit_floor_bps) // self.audit_floor_bps)

    @classmethod
    def deterring(cls, terms: Terms) -> Terms:
        """Returns the terms with the penalty raised to `least_penalty` if it is lower."""
        return replace(terms, penalty_per_unit=max(terms.penalty_per_unit, terms.least_penalty))


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool's entry on the ledger."""

    owner: Address
    status: PoolStatus
    terms_version: int
    next_terms_at: datetime
    pending_owner: Address
    domain_id: int
    member_count: int
    data_uri: str


@dataclass(frozen=True, slots=True)
class Escrow:
    """A pool's escrow, from which rewards and fees are paid."""

    balance: int
    reserved: int
    """Reserved for open work."""

    @property
    def free(self) -> int:
        """The part of the balance that is not reserved."""
        return self.balance - self.reserved


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The announced withdrawal of a pool's escrow; amount 0 if there is none."""

    amount: int
    ready_at: datetime
    """Earliest time of the withdrawal. Leases signed before the announcement have expired by then."""
    lapses_at: datetime
    """Latest time of the withdrawal."""

    def takes(self, at: datetime) -> int:
        """Returns the amount that may be withdrawn at the time `at` or later; 0 if `at` is after `lapses_at`."""
        return self.amount if at <= self.lapses_at else 0


@dataclass(frozen=True, slots=True)
class RoleHolder:
    """The key that holds a role, and the previous key, which stays valid until `previous_until`."""

    holder: Address
    previous: Address
    previous_until: datetime

    def keys(self, now: datetime) -> frozenset[Address]:
        """Returns the keys that hold the role at a given time."""
        return frozenset({self.holder, self.previous} if now < self.previous_until else {self.holder})


@dataclass(frozen=True, slots=True)
class PoolMembership:
    """A node's membership in a pool."""

    provider: Address
    joined_at: datetime
    joined_block: int
    stake_lock: int
    joins: int
    held_until: datetime
    """For a former member: leases that expire by this time can still be used."""


class PoolContracts:
    """Client of the `ComputePools` contract, for owners, managers, orchestrators and nodes."""

    def __init__(self, contract: BoundContract, token: Token) -> None:
        self._contract = contract
        self._token = token
        self.at = contract.at
        self.domain = contract.domain
        """EIP-712 domain of signatures for this contract."""

    # Reads

    async def count(self) -> int:
        """Returns the number of pools; ids start at 1."""
        return await self._contract.read_number("poolCount")

    async def get(self, pool_id: int) -> Pool:
        """Returns one pool."""
        return await self._contract.read_struct(Pool, "poolOf", pool_id)

    async def terms(self, pool_id: int) -> Terms:
        """Returns the terms in force."""
        return await self._contract.read_struct(Terms, "termsOf", pool_id)

    async def terms_at(self, pool_id: int, version: int) -> Terms:
        """Returns one version of the terms; versions start at 1."""
        return await self._contract.read_struct(Terms, "termsAt", pool_id, version)

    async def pending_terms(self, pool_id: int) -> tuple[Terms, datetime] | None:
        """Returns the proposed terms and the time at which they take effect.

        Returns None if there is no proposal.
        """
        terms, effective_at = await self._contract.read("pendingTermsOf", pool_id)
        if effective_at == 0:
            return None
        return struct_from_abi(Terms, terms), datetime.fromtimestamp(effective_at, UTC)

    async def escrow(self, pool_id: int) -> Escrow:
        """Returns the pool's escrow."""
        return await self._contract.read_struct(Escrow, "escrowOf", pool_id)

    async def withdrawal(self, pool_id: int) -> Withdrawal:
        """Returns the withdrawal of escrow that the owner announced."""
        return await self._contract.read_struct(Withdrawal, "withdrawalOf", pool_id)

    async def validators(self, pool_id: int) -> list[Address]:
        """Returns the keys that may give verdicts now, in the order of the contract's list."""
        return [address(each) for each in await self._contract.read("validatorsOf", pool_id)]

    async def role_holder(self, pool_id: int, role: Role) -> RoleHolder:
        """Returns the keys that hold a role."""
        return await self._contract.read_struct(RoleHolder, "seatOf", pool_id, role)

    async def is_manager(self, pool_id: int, who: Address) -> bool:
        """Returns whether `who` is the manager now."""
        return await self._contract.read_flag("isManager", pool_id, who)

    async def is_orchestrator(self, pool_id: int, who: Address) -> bool:
        """Returns whether `who` is the orchestrator now."""
        return await self._contract.read_flag("isOrchestrator", pool_id, who)

    async def is_publisher(self, pool_id: int, who: Address) -> bool:
        """Returns whether `who` may announce checkpoints now."""
        return await self._contract.read_flag("isPublisher", pool_id, who)

    async def is_validator(self, pool_id: int, who: Address) -> bool:
        """Returns whether `who` may give verdicts now."""
        return await self._contract.read_flag("isValidator", pool_id, who)

    async def membership(self, pool_id: int, node: Address) -> PoolMembership | None:
        """Returns a node's membership; None if it is not a member now."""
        found = await self._contract.read_struct(PoolMembership, "membershipOf", pool_id, node)
        return None if found.provider == ZERO_ADDRESS else found

    async def held_until(self, pool_id: int, node: Address) -> int:
        """Returns the latest expiry of leases that a former member may still use, in Unix seconds; 0 if none."""
        found = await self._contract.read_struct(PoolMembership, "membershipOf", pool_id, node)
        return int(found.held_until.timestamp())

    async def joins(self, pool_id: int, node: Address) -> int:
        """Returns how often the node has joined. A signed leave request contains this number, to prevent replays."""
        found = await self._contract.read_struct(PoolMembership, "membershipOf", pool_id, node)
        return found.joins

    async def is_banned(self, pool_id: int, node: Address, provider: Address | None = None) -> bool:
        """Returns whether the node or, if `provider` is given, this provider is banned."""
        if await self._contract.read_flag("nodeBanned", pool_id, node):
            return True
        return provider is not None and await self._contract.read_flag("providerBanned", pool_id, provider)

    async def invite_used(self, pool_id: int, nonce: int) -> bool:
        """Returns whether an invite was redeemed or cancelled."""
        return await self._contract.read_flag("inviteUsed", pool_id, nonce)

    # The owner

    async def create(self, *, domain_id: int, roles: Roles, terms: Terms, data_uri: str = "") -> int:
        """Creates a pending pool owned by the caller and returns its id."""
        receipt = await self._contract.send("createPool", domain_id, astuple(roles), _abi(terms), data_uri)
        return self._contract.events(PoolCreated, receipt)[0].pool_id

    async def activate(self, pool_id: int) -> Receipt:
        """Activates a pending pool."""
        return await self._contract.send("activate", pool_id)

    async def end(self, pool_id: int) -> Receipt:
        """Ends a pool: it takes no new members or work, but open work is still judged and paid."""
        return await self._contract.send("end", pool_id)

    async def set_terms(self, pool_id: int, terms: Terms) -> Receipt:
        """Proposes new terms; in an active pool they take effect after the notice period."""
        return await self._contract.send("setTerms", pool_id, _abi(terms))

    async def set_data_uri(self, pool_id: int, uri: str) -> Receipt:
        """Sets the URI of the pool's description."""
        return await self._contract.send("setDataUri", pool_id, uri)

    async def transfer(self, pool_id: int, new_owner: Address) -> Receipt:
        """Offers the pool to another owner, who must accept."""
        return await self._contract.send("transferPool", pool_id, new_owner)

    async def accept(self, pool_id: int) -> Receipt:
        """Takes over a pool that was offered to the caller."""
        return await self._contract.send("acceptPool", pool_id)

    async def fund(self, pool_id: int, amount: int) -> Receipt:
        """Adds to the escrow from the caller's tokens. Any account may call this."""
        await self._token.ensure_allowance(self.at, amount)
        return await self._contract.send("fund", pool_id, amount)

    async def announce_withdrawal(self, pool_id: int, amount: int) -> Receipt:
        """Announces a withdrawal of up to `amount` of free escrow after the notice period.

        An amount of 0 cancels the announcement.
        """
        return await self._contract.send("announceWithdrawal", pool_id, amount)

    async def withdraw_escrow(self, pool_id: int, amount: int, to: Address) -> Receipt:
        """Withdraws free escrow, up to the announced amount, once the notice period is over."""
        return await self._contract.send("withdrawEscrow", pool_id, amount, to)

    async def set_role(self, pool_id: int, role: Role, key: Address, *, previous_until: datetime) -> Receipt:
        """Replaces the key of a role. Only the owner or the current holder may call this.

        The previous key stays valid until `previous_until`, at most seven days ahead.
        """
        name = {Role.MANAGER: "setManager", Role.ORCHESTRATOR: "setOrchestrator", Role.PUBLISHER: "setPublisher"}[role]
        return await self._contract.send(name, pool_id, key, int(previous_until.timestamp()))

    async def add_validator(self, pool_id: int, validator: Address) -> Receipt:
        """Adds a validator, whose key may then give verdicts."""
        return await self._contract.send("addValidator", pool_id, validator)

    async def remove_validator(self, pool_id: int, validator: Address, *, until: datetime) -> Receipt:
        """Removes a validator; it may give verdicts until `until`, at most seven days ahead."""
        return await self._contract.send("removeValidator", pool_id, validator, int(until.timestamp()))

    # Members

    async def join(self, invite: Invite, *, orchestrator_signature: bytes, node_signature: bytes = b"") -> Receipt:
        """Redeems an invite; `node_signature` may be empty if the caller is the node."""
        return await self._contract.send("join", _abi_invite(invite), orchestrator_signature, node_signature)

    async def join_refusal(self, join: JoinRequest) -> Refusal | None:
        """Returns why the ledger would refuse a join now; None if the ledger would accept the join. Costs no gas."""
        return await self._contract.dry_run(join.invite.node, "join", *_abi_join(join))

    async def join_batch(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Submits joins for several nodes, so that the nodes need no gas; returns the refused joins."""
        receipt = await self._contract.send("joinBatch", [_abi_join(join) for join in joins])
        refused = self._contract.events(JoinRefused, receipt)
        return [self._contract.refusal(event.node, event.reason) for event in refused]

    async def leave(
        self, pool_id: int, node: Address, *, deadline: datetime | None = None, node_signature: bytes = b""
    ) -> Receipt:
        """Ends a membership. Callers other than the node and its provider need the node's signature."""
        until = 0 if deadline is None else int(deadline.timestamp())
        return await self._contract.send("leavePool", pool_id, node, until, node_signature)

    async def remove(self, pool_id: int, nodes: list[Address], reason: str) -> Receipt:
        """Removes dead nodes without a penalty; skips non-members.

        Only the orchestrator or the manager may call this.
        """
        return await self._contract.send("remove", pool_id, nodes, reason)

    async def cancel_invite(self, pool_id: int, nonce: int) -> Receipt:
        """Cancels an unused invite. Only owner, manager or orchestrator may call this."""
        return await self._contract.send("cancelInvite", pool_id, nonce)

    async def evict(self, pool_id: int, node: Address, reason: str) -> Receipt:
        """Removes a node for misconduct; the node may be invited again. Only the manager may call this."""
        return await self._contract.send("evict", pool_id, node, reason)

    async def ban(self, pool_id: int, node: Address, reason: str) -> Receipt:
        """Removes a node and forbids it to join again. Only the manager may call this."""
        return await self._contract.send("ban", pool_id, node, reason)

    async def unban(self, pool_id: int, node: Address) -> Receipt:
        """Lifts a node's ban. Only the manager may call this."""
        return await self._contract.send("unban", pool_id, node)

    async def ban_provider(self, pool_id: int, provider: Address, reason: str) -> Receipt:
        """Forbids all nodes of a provider to join or work. Only the manager may call this."""
        return await self._contract.send("banProvider", pool_id, provider, reason)

    async def unban_provider(self, pool_id: int, provider: Address) -> Receipt:
        """Lifts a provider's ban. Only the manager may call this."""
        return await self._contract.send("unbanProvider", pool_id, provider)


def _abi(terms: Terms) -> tuple[int, ...]:
    return tuple(int(v.total_seconds()) if isinstance(v, timedelta) else v for v in astuple(terms))


def _abi_invite(invite: Invite) -> tuple[int, Address, int, int, str]:
    return (invite.pool_id, invite.node, invite.nonce, invite.expiry, invite.url)


def _abi_join(join: JoinRequest) -> tuple[object, ...]:
    return _abi_invite(join.invite.invite), join.invite.raw_signature, bytes.fromhex(join.signature[2:])
