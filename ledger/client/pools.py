"""Pools: terms, roles, escrow, and who is a member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from ledger.abi_types import struct_from_abi
from ledger.client.contract import BoundContract
from ledger.client.token import Token
from ledger.events.types import JoinRefused, PoolCreated
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_ADDRESS, Address, address
from protocol.invites import Invite

MAX_FEES = 3
"""The most verdicts and second looks that are paid for one piece of work (`MAX_FEES` of the contracts)."""


class PoolStatus(IntEnum):
    """Where a pool is in its life."""

    PENDING = 1
    ACTIVE = 2
    ENDED = 3


class Role(IntEnum):
    """The keys of a pool that are one each; validators are many."""

    MANAGER = 0
    ORCHESTRATOR = 1
    PUBLISHER = 2


@dataclass(frozen=True, slots=True)
class Roles:
    """Who holds which role of a new pool."""

    manager: Address
    orchestrator: Address
    publisher: Address


@dataclass(frozen=True, slots=True)
class Terms:
    """What a pool's members work under. Money is in the token's smallest unit."""

    price_per_unit: int
    penalty_per_unit: int
    stake_per_capacity: int
    audit_floor_bps: int
    """The share of work that is audited at the least, in basis points."""
    look_bps: int
    """The share of first verdicts for which a second look is paid, in basis points."""
    judge_period: timedelta
    challenge_period: timedelta
    dispute_period: timedelta
    notice_period: timedelta
    """How long before new terms bind anybody."""
    max_nodes: int
    min_capacity: int
    verdict_fee: int
    """What a validator earns for a verdict or a paid second look that the final outcome bears out."""

    @property
    def reserved_fees(self) -> int:
        """The escrow that a piece of work reserves for verdicts, beside its reward."""
        return MAX_FEES * self.verdict_fee

    @property
    def least_penalty(self) -> int:
        """`price · (1 - q) / q` at audit floor q, rounded up: below it, cheating pays on average."""
        return -(-self.price_per_unit * (10_000 - self.audit_floor_bps) // self.audit_floor_bps)

    @classmethod
    def deterring(cls, terms: Terms) -> Terms:
        """The same terms with the penalty raised to the least that deters."""
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
    """What a pool can pay from."""

    balance: int
    reserved: int
    """Set aside for open work."""

    @property
    def free(self) -> int:
        """What no open work reserves."""
        return self.balance - self.reserved


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A withdrawal of escrow that the owner announced; amount 0 if there is none."""

    amount: int
    ready_at: datetime
    """When it can be made. Leases that are signed before it was announced end earlier."""
    lapses_at: datetime
    """After this it can't be made any more."""

    def takes(self, at: datetime) -> int:
        """What it may still take out of the escrow, whether or not it is ready yet."""
        return self.amount if at <= self.lapses_at else 0


@dataclass(frozen=True, slots=True)
class RoleHolder:
    """A role's holder, and the key before it, which still counts until `previous_until`."""

    holder: Address
    previous: Address
    previous_until: datetime

    def keys(self, now: datetime) -> frozenset[Address]:
        """Returns the keys that hold the role at a given time."""
        return frozenset({self.holder, self.previous} if now < self.previous_until else {self.holder})


@dataclass(frozen=True, slots=True)
class PoolMembership:
    """A node's place in a pool."""

    provider: Address
    joined_at: datetime
    joined_block: int
    stake_lock: int
    joins: int
    held_until: datetime
    """Of a former member: a lease that expires by then can still be used."""


@dataclass(frozen=True, slots=True)
class SignedJoin:
    """An invite with both signatures, ready to be carried to the ledger by anybody."""

    invite: Invite
    orchestrator_signature: bytes
    node_signature: bytes


@dataclass(frozen=True, slots=True)
class JoinRefusal:
    """A join that the ledger did not take; the others of its batch are not touched by it."""

    pool_id: int
    node: Address
    reason: str


class PoolContracts:
    """Reads pools and does everything that owners, managers, orchestrators and nodes may do with them."""

    def __init__(self, contract: BoundContract, token: Token) -> None:
        self._contract = contract
        self._token = token
        self.at = contract.at
        self.domain = contract.domain
        """What signatures for this contract are bound to."""

    # Reads

    async def count(self) -> int:
        """How many there are; ids run from 1."""
        return await self._contract.read_number("poolCount")

    async def get(self, pool_id: int) -> Pool:
        """One pool."""
        return await self._contract.read_struct(Pool, "poolOf", pool_id)

    async def terms(self, pool_id: int) -> Terms:
        """The terms in force."""
        return await self._contract.read_struct(Terms, "termsOf", pool_id)

    async def terms_at(self, pool_id: int, version: int) -> Terms:
        """A version of the terms; the first is 1."""
        return await self._contract.read_struct(Terms, "termsAt", pool_id, version)

    async def pending_terms(self, pool_id: int) -> tuple[Terms, datetime] | None:
        """The next terms and when they bind; None if nothing is to change."""
        terms, effective_at = await self._contract.read("pendingTermsOf", pool_id)
        if effective_at == 0:
            return None
        return struct_from_abi(Terms, terms), datetime.fromtimestamp(effective_at, UTC)

    async def escrow(self, pool_id: int) -> Escrow:
        """What the pool can pay from."""
        return await self._contract.read_struct(Escrow, "escrowOf", pool_id)

    async def withdrawal(self, pool_id: int) -> Withdrawal:
        """The withdrawal that the owner announced."""
        return await self._contract.read_struct(Withdrawal, "withdrawalOf", pool_id)

    async def validators(self, pool_id: int) -> list[Address]:
        """The keys that may give verdicts now, in the order of their seats."""
        return [address(each) for each in await self._contract.read("validatorsOf", pool_id)]

    async def may_join_at(self, pool_id: int, provider: Address) -> datetime:
        """Before this time no node of the provider may join, since work of one of them was forged."""
        return datetime.fromtimestamp(await self._contract.read_number("mayJoinAt", pool_id, provider), UTC)

    async def seat(self, pool_id: int, role: Role) -> RoleHolder:
        """Who holds a role."""
        return await self._contract.read_struct(RoleHolder, "seatOf", pool_id, role)

    async def is_manager(self, pool_id: int, who: Address) -> bool:
        """Whether `who` is the manager now."""
        return await self._contract.read_flag("isManager", pool_id, who)

    async def is_orchestrator(self, pool_id: int, who: Address) -> bool:
        """Whether `who` is the orchestrator's key now."""
        return await self._contract.read_flag("isOrchestrator", pool_id, who)

    async def is_publisher(self, pool_id: int, who: Address) -> bool:
        """Whether `who` may announce checkpoints now."""
        return await self._contract.read_flag("isPublisher", pool_id, who)

    async def is_validator(self, pool_id: int, who: Address) -> bool:
        """Whether `who` may give verdicts now."""
        return await self._contract.read_flag("isValidator", pool_id, who)

    async def membership(self, pool_id: int, node: Address) -> PoolMembership | None:
        """A node's membership; None if it is no member now."""
        found = await self._contract.read_struct(PoolMembership, "membershipOf", pool_id, node)
        return None if found.provider == ZERO_ADDRESS else found

    async def held_until(self, pool_id: int, node: Address) -> int:
        """Up to when a lease of a former member may expire that it can still use, in Unix seconds; 0: none."""
        found = await self._contract.read_struct(PoolMembership, "membershipOf", pool_id, node)
        return int(found.held_until.timestamp())

    async def joins(self, pool_id: int, node: Address) -> int:
        """How often the node has joined; what it signs when it leaves by another's hand carries this number."""
        found = await self._contract.read_struct(PoolMembership, "membershipOf", pool_id, node)
        return found.joins

    async def is_banned(self, pool_id: int, node: Address, provider: Address | None = None) -> bool:
        """Whether the node, or its provider if given, is banned."""
        if await self._contract.read_flag("nodeBanned", pool_id, node):
            return True
        return provider is not None and await self._contract.read_flag("providerBanned", pool_id, provider)

    async def invite_used(self, pool_id: int, nonce: int) -> bool:
        """Whether an invite was redeemed or cancelled."""
        return await self._contract.read_flag("inviteUsed", pool_id, nonce)

    # The owner

    async def create(self, *, domain_id: int, roles: Roles, terms: Terms, data_uri: str = "") -> int:
        """Makes a pool owned by the caller, pending, and returns its id."""
        receipt = await self._contract.send("createPool", domain_id, astuple(roles), _abi(terms), data_uri)
        return self._contract.events(PoolCreated, receipt)[0].pool_id

    async def activate(self, pool_id: int) -> Receipt:
        """Opens a pending pool."""
        return await self._contract.send("activate", pool_id)

    async def end(self, pool_id: int) -> Receipt:
        """Ends a pool: no new members, no new work; what is open is judged and paid."""
        return await self._contract.send("end", pool_id)

    async def set_terms(self, pool_id: int, terms: Terms) -> Receipt:
        """Proposes new terms; in an active pool they bind after the notice period."""
        return await self._contract.send("setTerms", pool_id, _abi(terms))

    async def set_data_uri(self, pool_id: int, uri: str) -> Receipt:
        """Says where the pool is described."""
        return await self._contract.send("setDataUri", pool_id, uri)

    async def transfer(self, pool_id: int, new_owner: Address) -> Receipt:
        """Offers the pool to another owner, who must accept."""
        return await self._contract.send("transferPool", pool_id, new_owner)

    async def accept(self, pool_id: int) -> Receipt:
        """Takes over a pool that was offered to the caller."""
        return await self._contract.send("acceptPool", pool_id)

    async def fund(self, pool_id: int, amount: int) -> Receipt:
        """Adds to the escrow from the caller's tokens; anybody may."""
        await self._token.ensure_allowance(self.at, amount)
        return await self._contract.send("fund", pool_id, amount)

    async def announce_withdrawal(self, pool_id: int, amount: int) -> Receipt:
        """Announces that up to `amount` of the free escrow will be taken out after the notice period; 0 cancels it."""
        return await self._contract.send("announceWithdrawal", pool_id, amount)

    async def withdraw_escrow(self, pool_id: int, amount: int, to: Address) -> Receipt:
        """Takes free escrow out whose withdrawal was announced and is ready."""
        return await self._contract.send("withdrawEscrow", pool_id, amount, to)

    async def set_role(self, pool_id: int, role: Role, key: Address, *, previous_until: datetime) -> Receipt:
        """Rotates a role's key; the former one counts until `previous_until`, at most seven days. Owner or holder."""
        name = {Role.MANAGER: "setManager", Role.ORCHESTRATOR: "setOrchestrator", Role.PUBLISHER: "setPublisher"}[role]
        return await self._contract.send(name, pool_id, key, int(previous_until.timestamp()))

    async def add_validator(self, pool_id: int, validator: Address) -> Receipt:
        """Lets a key give verdicts."""
        return await self._contract.send("addValidator", pool_id, validator)

    async def remove_validator(self, pool_id: int, validator: Address, *, until: datetime) -> Receipt:
        """Ends a validator's right at `until`, at most seven days ahead."""
        return await self._contract.send("removeValidator", pool_id, validator, int(until.timestamp()))

    # Members

    async def join(self, invite: Invite, *, orchestrator_signature: bytes, node_signature: bytes = b"") -> Receipt:
        """Redeems an invite; the node's signature may be empty when the caller is the node."""
        return await self._contract.send("join", _abi_invite(invite), orchestrator_signature, node_signature)

    async def join_refusal_of(self, joining: SignedJoin) -> JoinRefusal | None:
        """Why the ledger would not take a join now; None if it would. Costs no gas."""
        invite = joining.invite
        reason = await self._contract.refusal(
            "join", _abi_invite(invite), joining.orchestrator_signature, joining.node_signature
        )
        return JoinRefusal(invite.pool_id, invite.node, reason) if reason else None

    async def join_batch(self, joinings: Sequence[SignedJoin]) -> list[JoinRefusal]:
        """Carries many joins, so that nodes need no gas; returns those that were refused, with the reason."""
        items = [(_abi_invite(each.invite), each.orchestrator_signature, each.node_signature) for each in joinings]
        receipt = await self._contract.send("joinBatch", items)
        refused = self._contract.events(JoinRefused, receipt)
        return [JoinRefusal(e.pool_id, e.node, self._contract.explain(e.reason)) for e in refused]

    async def leave(
        self, pool_id: int, node: Address, *, deadline: datetime | None = None, node_signature: bytes = b""
    ) -> Receipt:
        """Ends a membership: by the node, its provider, or anybody who carries the node's signature."""
        until = 0 if deadline is None else int(deadline.timestamp())
        return await self._contract.send("leavePool", pool_id, node, until, node_signature)

    async def remove(self, pool_id: int, nodes: list[Address], reason: str) -> Receipt:
        """Takes nodes out without blame (dead ones); orchestrator or manager. Those that are no members are skipped."""
        return await self._contract.send("remove", pool_id, nodes, reason)

    async def cancel_invite(self, pool_id: int, nonce: int) -> Receipt:
        """Makes an invite worthless; owner, manager or orchestrator."""
        return await self._contract.send("cancelInvite", pool_id, nonce)

    async def evict(self, pool_id: int, node: Address, reason: str) -> Receipt:
        """Takes a node out for cause; the manager only. It may be invited again."""
        return await self._contract.send("evict", pool_id, node, reason)

    async def ban(self, pool_id: int, node: Address, reason: str) -> Receipt:
        """Takes a node out and keeps it out; the manager only."""
        return await self._contract.send("ban", pool_id, node, reason)

    async def unban(self, pool_id: int, node: Address) -> Receipt:
        """Lifts a node's ban; the manager only."""
        return await self._contract.send("unban", pool_id, node)

    async def ban_provider(self, pool_id: int, provider: Address, reason: str) -> Receipt:
        """Keeps all nodes of a provider out; the manager only."""
        return await self._contract.send("banProvider", pool_id, provider, reason)

    async def unban_provider(self, pool_id: int, provider: Address) -> Receipt:
        """Lifts a provider's ban; the manager only."""
        return await self._contract.send("unbanProvider", pool_id, provider)


def _abi(terms: Terms) -> tuple[int, ...]:
    return tuple(int(v.total_seconds()) if isinstance(v, timedelta) else v for v in astuple(terms))


def _abi_invite(invite: Invite) -> tuple[int, Address, int, int, str]:
    return (invite.pool_id, invite.node, invite.nonce, invite.expiry, invite.url)
