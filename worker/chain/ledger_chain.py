"""Everything that the worker reads from the ledger and writes to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol, TypeVar

from ledger.amounts import format_amount
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.pools import PoolStatus, Role, Terms
from ledger.client.work import Submission, WorkStatus
from ledger.deployment import Deployment
from ledger.transactions.pending import SendPolicy
from protocol.errors import MusterError
from protocol.identifiers import Address, Digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease, WorkKey
from protocol.verdicts import Outcome
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedWorkClaim
from worker.chain.lease_verifier import LeaseVerifier
from worker.chain.pool_record import PoolRecord, read_pool_record

T = TypeVar("T")

CLOCK_TOLERANCE = timedelta(seconds=60)
"""How far this machine's clock may be off before good leases are refused; signed requests allow the same."""
TERMS_GOOD_FOR = timedelta(minutes=1)
"""New terms bind after a notice period, so that older ones hold for a while."""
MONEY_GOOD_FOR = timedelta(seconds=10)
"""An announced withdrawal binds after the notice period, so one that is heard of so late endangers no lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Where a node stands on the ledger.

    Args:
        provider: Who registered it; None if nobody did.
        member: Whether it is a member of the pool.
        banned: The node itself, or its provider.
        active: Whether the pool takes members.
        capacity: As registered.
        min_capacity: What the pool asks.
        free_stake: The provider's, in the token's smallest unit.
        needed_stake: What joining binds.
        gas: What the node can pay for gas, in wei.
    """

    provider: Address | None
    member: bool
    banned: bool
    active: bool
    capacity: int
    min_capacity: int
    free_stake: int
    needed_stake: int
    gas: int

    def obstacle(self) -> tuple[str, str] | None:
        """What keeps the node from joining, and what to do about it; None if nothing does."""
        checks = (
            (
                self.provider is None,
                "no provider has registered this node on the ledger",
                "run `muster node register` with the provider's key",
            ),
            (
                self.banned,
                "the pool has banned this node or its provider",
                "ask the pool's owner; a ban can be lifted",
            ),
            (
                not self.active,
                "the pool is not open",
                "wait for its owner to activate it, or choose another pool",
            ),
            (
                self.capacity < self.min_capacity,
                f"the node is registered with capacity {self.capacity}, the pool asks for {self.min_capacity}",
                "choose another pool, or register the machine's real capacity with `muster node update`",
            ),
            (
                self.free_stake < self.needed_stake,
                f"the provider has {self.free_stake} of free stake, joining binds {self.needed_stake}",
                "add stake with `muster stake add`",
            ),
        )
        if self.member:
            return None
        return next(((what, hint) for is_so, what, hint in checks if is_so), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerWork:
    """What the ledger has under a work key."""

    sha256: Digest
    units: int


class Payment(StrEnum):
    """How a submitted piece of work has ended."""

    OPEN = "open"
    """It may still be judged, disputed or paid."""
    PAID = "paid"
    UNPAID = "unpaid"
    """A verdict against it is final."""
    EXPIRED = "expired"
    """No validator judged it within the judge period."""


class WorkerChain(Protocol):
    """The ledger, as far as a worker needs it. Everything raises `Unavailable` errors while the chain is down."""

    @property
    def invites_domain(self) -> SigningDomain:
        """The contract that takes invites."""
        ...

    @property
    def work_domain(self) -> SigningDomain:
        """The contract that takes work under leases."""
        ...

    async def standing(self) -> NodeStatus:
        """Where this node stands."""
        ...

    async def orchestrator(self) -> Address:
        """The pool's orchestrator key now."""
        ...

    async def is_orchestrator(self, who: Address) -> bool:
        """Whether `who` may sign for the pool now."""
        ...

    async def join(self, invite: SignedInvite) -> None:
        """Redeems an invite.

        Raises:
            MusterError: The ledger refuses it, with the reason.
        """
        ...

    async def leave(self) -> None:
        """Ends the membership; nothing happens if there is none."""
        ...

    async def pay_fault_of(self, lease: Lease, now: datetime) -> str:
        """Returns why work under a lease may be taken and not paid, in words; empty if it is covered.

        Args:
            lease: The lease.
            now: The present time. The newest block's would not do: a quiet chain may not have mined for long.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        ...

    async def fault_of(self, lease: Lease, beacon: Digest) -> str:
        """Returns what the chain says against a grant of this node's, in words; empty if it bears it out.

        Args:
            lease: The lease.
            beacon: The hash of the block that it names, as the orchestrator says.
        """
        ...

    async def now(self) -> datetime:
        """The time of the newest block, which is what leases end by."""
        ...

    async def work(self, key: WorkKey) -> LedgerWork | None:
        """What was submitted under this key; None if nothing was."""
        ...

    async def payment(self, key: WorkKey) -> Payment | None:
        """How a piece of work ended; None if it was never submitted."""
        ...

    async def pool_record(self) -> PoolRecord:
        """How the pool's newest pieces of work ended, and what its owner is about to take out."""
        ...

    async def submit(self, work: SignedWorkClaim) -> None:
        """Submits work, at this node's own cost.

        Raises:
            TransactionReverted: The ledger does not take it, with the reason.
            InsufficientFunds: The node can't pay for gas.
        """
        ...


class LedgerChain:
    """The real one. It connects when it is first needed and again after a failure: a worker starts without a chain.

    Args:
        rpc: URL of a JSON-RPC node.
        deployment: Where the contracts are.
        key: The node's.
        pool_id: The pool.
        policy: How transactions are offered and watched.
    """

    def __init__(
        self, *, rpc: str, deployment: Deployment, key: Key, pool_id: int, policy: SendPolicy | None = None
    ) -> None:
        self._rpc = rpc
        self._deployment = deployment
        self._key = key
        self._pool_id = pool_id
        self._policy = policy
        self._stack: AsyncExitStack | None = None
        self._ledger: Ledger | None = None
        self._opening = asyncio.Lock()
        self._beacons = LeaseVerifier()
        self._terms: tuple[float, Terms, datetime | None] | None = None
        self._money: tuple[float, int] | None = None

    @property
    def invites_domain(self) -> SigningDomain:
        """`ComputePools` on this chain."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.COMPUTE_POOLS])

    @property
    def work_domain(self) -> SigningDomain:
        """`WorkLedger` on this chain."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.WORK_LEDGER])

    async def standing(self) -> NodeStatus:
        """Reads registry, stake and pool."""
        return await self._with(self._standing)

    async def orchestrator(self) -> Address:
        """The present holder of the role."""

        async def read(ledger: Ledger) -> Address:
            return (await ledger.pools.seat(self._pool_id, Role.ORCHESTRATOR)).holder

        return await self._with(read)

    async def is_orchestrator(self, who: Address) -> bool:
        """True for the present key, and for the previous one until its stated end."""
        return await self._with(lambda ledger: ledger.pools.is_orchestrator(self._pool_id, who))

    async def join(self, invite: SignedInvite) -> None:
        """The node itself sends the transaction."""

        async def send(ledger: Ledger) -> None:
            await ledger.pools.join(invite.invite, orchestrator_signature=invite.raw_signature)

        await self._with(send)

    async def leave(self) -> None:
        """The node itself sends the transaction."""

        async def send(ledger: Ledger) -> None:
            if await ledger.pools.membership(self._pool_id, self._key.address) is not None:
                await ledger.pools.leave(self._pool_id, self._key.address)

        await self._with(send)

    async def pay_fault_of(self, lease: Lease, now: datetime) -> str:
        """Compares with the pool's notice period, the terms that are announced, and its escrow."""
        terms, worse_from, sure = await self._with(self._terms_and_money)
        expiry = datetime.fromtimestamp(min(lease.expiry, 2**37), UTC)
        notice, most = terms.notice_period, terms.price_per_unit * lease.max_units + terms.reserved_fees
        # A node that is removed, or whose pool's escrow is withdrawn, is still paid for leases that end within the
        # notice period. Work under a longer one could be taken and not paid.
        if (left := expiry - now) > notice + CLOCK_TOLERANCE:
            return (
                f"it lasts {left.total_seconds():.0f} s, and the pool's escrow and this node's membership are sure for "
                f"the notice period only, {notice.total_seconds():.0f} s"
            )
        if worse_from is not None and expiry >= worse_from:
            return f"it may be used when new terms bind, {worse_from:%Y-%m-%d %H:%M:%S} UTC, that pay less or cost more"
        if most > sure:
            return (
                f"its work may cost {format_amount(most)} MUST, and the pool's escrow has "
                f"{format_amount(max(0, sure))} MUST that neither open work nor an announced withdrawal takes"
            )
        return ""

    async def fault_of(self, lease: Lease, beacon: Digest) -> str:
        """Compares with the chain, once for each version and block."""
        return await self._with(lambda ledger: self._beacons.fault(ledger, lease, beacon=beacon))

    async def now(self) -> datetime:
        """By the newest block."""
        return await self._with(lambda ledger: ledger.now())

    async def work(self, key: WorkKey) -> LedgerWork | None:
        """Asks `WorkLedger`."""
        found = await self._with(lambda ledger: ledger.work.get(key.hash))
        return None if found is None else LedgerWork(sha256=found.sha256, units=found.units)

    async def payment(self, key: WorkKey) -> Payment | None:
        """Asks `WorkLedger`. Work that can't be judged any more counts as expired before it is marked so there."""
        found = await self._with(lambda ledger: ledger.work.get(key.hash))
        if found is None:
            return None
        match found.status:
            case WorkStatus.EXPIRED:
                return Payment.EXPIRED
            case WorkStatus.FINAL:
                return Payment.PAID if found.outcome is Outcome.ACCEPTED else Payment.UNPAID
            case WorkStatus.SUBMITTED if found.deadline is not None and await self.now() > found.deadline:
                return Payment.EXPIRED
        return Payment.OPEN

    async def pool_record(self) -> PoolRecord:
        """Reads a bounded number of blocks back."""
        return await self._with(lambda ledger: read_pool_record(ledger, self._pool_id))

    async def submit(self, work: SignedWorkClaim) -> None:
        """The node itself sends the transaction."""
        submission = Submission(
            lease=work.lease.lease,
            lease_signature=work.lease.raw_signature,
            sha256=work.sha256,
            units=work.units,
            node_signature=b"",  # the sender is the node
        )
        await self._with(lambda ledger: ledger.work.submit(submission))

    async def close(self) -> None:
        """Closes the connection."""
        stack, self._stack, self._ledger = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    async def _with(self, work: Callable[[Ledger], Awaitable[T]]) -> T:
        async with self._opening:
            if self._ledger is None:
                stack = AsyncExitStack()
                opened = Ledger.connect(self._rpc, self._deployment, key=self._key, policy=self._policy)
                self._ledger = await stack.enter_async_context(opened)
                self._stack = stack
        return await work(self._ledger)

    async def _terms_and_money(self, ledger: Ledger) -> tuple[Terms, datetime | None, int]:
        """The terms in force, when worse ones will be, and the escrow that no open work or announced withdrawal takes.

        All are asked for again when they are no longer fresh. An announced withdrawal counts as taken from the start:
        its owner may make it at any moment once it is ready.
        """
        now = time.monotonic()
        if self._terms is None or now - self._terms[0] > TERMS_GOOD_FOR.total_seconds():
            terms, pending = await asyncio.gather(
                ledger.pools.terms(self._pool_id), ledger.pools.pending_terms(self._pool_id)
            )
            self._terms = now, terms, pending[1] if pending is not None and _worse(pending[0], terms) else None
        if self._money is None or now - self._money[0] > MONEY_GOOD_FOR.total_seconds():
            escrow, announced, at = await asyncio.gather(
                ledger.pools.escrow(self._pool_id), ledger.pools.withdrawal(self._pool_id), ledger.now()
            )
            self._money = now, escrow.free - announced.takes(at)
        return self._terms[1], self._terms[2], self._money[1]

    async def _standing(self, ledger: Ledger) -> NodeStatus:
        node = self._key.address
        found = await ledger.registry.node(node)
        pool, terms = await ledger.pools.get(self._pool_id), await ledger.pools.terms(self._pool_id)
        registered = found is not None and not found.retired
        provider = found.provider if found is not None and registered else None
        capacity = found.capacity if found is not None else 0
        return NodeStatus(
            provider=provider,
            member=await ledger.pools.membership(self._pool_id, node) is not None,
            banned=await ledger.pools.is_banned(self._pool_id, node, provider),
            active=pool.status is PoolStatus.ACTIVE,
            capacity=capacity,
            min_capacity=terms.min_capacity,
            free_stake=(await ledger.stake.of(provider)).free if provider is not None else 0,
            needed_stake=capacity * terms.stake_per_capacity,
            gas=await ledger.balance(node),
        )


@asynccontextmanager
async def open_chain(*, rpc: str, deployment: Deployment, key: Key, pool_id: int) -> AsyncIterator[LedgerChain]:
    """A `LedgerChain` that is closed in the end."""
    chain = LedgerChain(rpc=rpc, deployment=deployment, key=key, pool_id=pool_id)
    try:
        yield chain
    finally:
        await chain.close()


def why(error: MusterError) -> str:
    """An error in one line, with what to do."""
    return f"{error.detail} ({error.hint})" if error.hint else error.detail


def _worse(new: Terms, old: Terms) -> bool:
    """Whether work pays less under new terms, or costs more if it is forged."""
    return new.price_per_unit < old.price_per_unit or new.penalty_per_unit > old.penalty_per_unit
