"""The worker's access to the ledger: all its reads and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol, TypeVar

import httpx

from ledger.amounts import format_amount
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.pools import PoolStatus, Role, Terms
from ledger.client.work import WorkRecord, WorkStatus
from ledger.deployment import Deployment
from ledger.transactions.pending import SendPolicy
from protocol.errors import MusterError
from protocol.identifiers import Address, Digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease, WorkKey
from protocol.runtime.clock import Clock, SystemClock
from protocol.verdicts import Outcome
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedWorkClaim
from worker.chain.lease_verifier import LeaseVerifier
from worker.chain.pool_record import PoolRecord, read_pool_record

T = TypeVar("T")

CLOCK_TOLERANCE = timedelta(seconds=60)
"""Maximum clock error of this machine at which valid leases are accepted; the same as for signed requests."""
TERMS_CACHE_TTL = timedelta(minutes=1)
"""Cache time of terms; safe because new terms take effect after a notice period."""
ESCROW_CACHE_TTL = timedelta(seconds=10)
"""Cache time of the escrow; safe because an announced withdrawal takes effect after the notice period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Status of a node on the ledger.

    Args:
        provider: Address that registered the node; None if it is not registered.
        member: Whether the node is a member of the pool.
        banned: Whether the pool has banned the node or its provider.
        active: Whether the pool accepts members.
        capacity: Registered capacity.
        min_capacity: Minimum capacity that the pool requires.
        free_stake: Free stake of the provider, in the token's smallest unit.
        needed_stake: Stake that joining locks, in the token's smallest unit.
        gas: The node's balance for gas, in wei.
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
        """Returns the obstacle to joining and how to remove it; None if there is none."""
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
                f"the node is registered with capacity {self.capacity}, the pool requires {self.min_capacity}",
                "choose another pool, or register the machine's real capacity with `muster node update`",
            ),
            (
                self.free_stake < self.needed_stake,
                f"the provider has {self.free_stake} of free stake, and joining locks {self.needed_stake}",
                "add stake with `muster stake add`",
            ),
        )
        if self.member:
            return None
        return next(((what, hint) for is_so, what, hint in checks if is_so), None)


class Payment(StrEnum):
    """Payment state of submitted work."""

    OPEN = "open"
    """Not final: it may still be judged, disputed or paid."""
    PAID = "paid"
    UNPAID = "unpaid"
    """A verdict other than accepted is final."""
    EXPIRED = "expired"
    """No validator judged it within the judge period."""


class WorkerChain(Protocol):
    """Ledger operations that a worker needs. All raise `Unavailable` errors while the chain is down."""

    @property
    def invites_domain(self) -> SigningDomain:
        """EIP-712 domain of the contract that accepts invites."""
        ...

    @property
    def work_domain(self) -> SigningDomain:
        """EIP-712 domain of the contract that accepts work."""
        ...

    async def node_status(self) -> NodeStatus:
        """Returns this node's status."""
        ...

    async def orchestrator(self) -> Address:
        """Returns the pool's current orchestrator key."""
        ...

    async def is_orchestrator(self, who: Address) -> bool:
        """Returns whether `who` may sign for the pool as its orchestrator now."""
        ...

    async def join(self, invite: SignedInvite) -> None:
        """Redeems an invite.

        Raises:
            MusterError: The ledger refuses the invite; the error has the reason.
        """
        ...

    async def leave(self) -> None:
        """Ends the membership; does nothing if there is none."""
        ...

    async def pay_fault_of(self, lease: Lease, now: datetime) -> str:
        """Returns why work under a lease may be accepted but not paid, as text; empty if payment is covered.

        Args:
            lease: The lease.
            now: Current time, not the newest block's: an idle chain may not have mined a block for long.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        ...

    async def fault_of(self, lease: Lease, beacon: Digest) -> str:
        """Returns how a lease of this node contradicts the chain, as text; empty if they agree.

        Args:
            lease: The lease.
            beacon: Hash of its beacon block according to the orchestrator.
        """
        ...

    async def now(self) -> datetime:
        """Returns the time of the newest block, by which leases expire."""
        ...

    async def work(self, key: WorkKey) -> WorkRecord | None:
        """Returns the work submitted under this key; None if there is none."""
        ...

    async def payment(self, key: WorkKey) -> Payment | None:
        """Returns the payment state of work; None if it was never submitted."""
        ...

    async def pool_record(self) -> PoolRecord:
        """Returns the outcomes of the pool's newest work and the announced withdrawal from its escrow."""
        ...

    async def submit(self, work: SignedWorkClaim) -> None:
        """Submits work; this node pays the gas.

        Raises:
            TransactionReverted: The ledger refuses the work; the error has the reason.
            InsufficientFunds: The node can't pay for gas.
        """
        ...


class LedgerChain:
    """`WorkerChain` over JSON-RPC. Each call connects if necessary, so a worker can start while the chain is down.

    Args:
        rpc: URL of a JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        key: The node's key.
        pool_id: Pool of this node.
        policy: Fee, retry and time-out policy of transactions.
        clock: Clock of caches and deadlines; the system's by default.
        transport: HTTP transport to a chain in the same process.
    """

    def __init__(
        self,
        *,
        rpc: str,
        deployment: Deployment,
        key: Key,
        pool_id: int,
        policy: SendPolicy | None = None,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._rpc = rpc
        self._deployment = deployment
        self._key = key
        self._pool_id = pool_id
        self._policy = policy
        self._clock = SystemClock() if clock is None else clock
        self._transport = transport
        self._stack: AsyncExitStack | None = None
        self._ledger: Ledger | None = None
        self._opening = asyncio.Lock()
        self._lease_verifier = LeaseVerifier()
        self._terms: tuple[float, Terms, datetime | None] | None = None
        self._escrow: tuple[float, int] | None = None

    @property
    def invites_domain(self) -> SigningDomain:
        """`ComputePools` on this chain."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.COMPUTE_POOLS])

    @property
    def work_domain(self) -> SigningDomain:
        """`WorkLedger` on this chain."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.WORK_LEDGER])

    async def node_status(self) -> NodeStatus:
        """Reads registry, stake and pool."""
        return await self._call(self._node_status)

    async def orchestrator(self) -> Address:
        """Returns the current holder of the orchestrator role."""

        async def read(ledger: Ledger) -> Address:
            return (await ledger.pools.seat(self._pool_id, Role.ORCHESTRATOR)).holder

        return await self._call(read)

    async def is_orchestrator(self, who: Address) -> bool:
        """Returns True for the current key, and for the previous key until its stated end."""
        return await self._call(lambda ledger: ledger.pools.is_orchestrator(self._pool_id, who))

    async def join(self, invite: SignedInvite) -> None:
        """Sends the transaction from the node's own account."""

        async def send(ledger: Ledger) -> None:
            await ledger.pools.join(invite.invite, orchestrator_signature=invite.raw_signature)

        await self._call(send)

    async def leave(self) -> None:
        """Sends the transaction from the node's own account."""

        async def send(ledger: Ledger) -> None:
            if await ledger.pools.membership(self._pool_id, self._key.address) is not None:
                await ledger.pools.leave(self._pool_id, self._key.address)

        await self._call(send)

    async def pay_fault_of(self, lease: Lease, now: datetime) -> str:
        """Compares a lease with the pool's notice period, announced terms and escrow."""
        terms, worse_from, available = await self._call(self._terms_and_escrow)
        expiry = datetime.fromtimestamp(min(lease.expiry, 2**37), UTC)
        notice, most = terms.notice_period, terms.price_per_unit * lease.max_units + terms.reserved_fees
        # A node that is removed, or whose pool's escrow is withdrawn, is still paid for leases that end within the
        # notice period. Work under a longer lease could be accepted and not paid.
        if (left := expiry - now) > notice + CLOCK_TOLERANCE:
            return (
                f"it lasts {left.total_seconds():.0f} s, and the pool's escrow and this node's membership are "
                f"guaranteed for the notice period only, {notice.total_seconds():.0f} s"
            )
        if worse_from is not None and expiry >= worse_from:
            return f"it ends after worse terms (price or penalty) take effect, at {worse_from:%Y-%m-%d %H:%M:%S} UTC"
        if most > available:
            return (
                f"its work may cost {format_amount(most)} MUST, and only {format_amount(max(0, available))} MUST of "
                "the pool's escrow are neither reserved for open work nor announced for withdrawal"
            )
        return ""

    async def fault_of(self, lease: Lease, beacon: Digest) -> str:
        """Verifies a lease with `LeaseVerifier`."""
        return await self._call(lambda ledger: self._lease_verifier.fault(ledger, lease, beacon=beacon))

    async def now(self) -> datetime:
        """Returns the time of the newest block."""
        return await self._call(lambda ledger: ledger.now())

    async def work(self, key: WorkKey) -> WorkRecord | None:
        """Reads `WorkLedger`."""
        return await self._call(lambda ledger: ledger.work.get(key.hash))

    async def payment(self, key: WorkKey) -> Payment | None:
        """Reads `WorkLedger`. Work past its judging deadline counts as expired before the contract marks it so."""
        found = await self._call(lambda ledger: ledger.work.get(key.hash))
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
        """Reads events of a bounded number of blocks."""
        return await self._call(lambda ledger: read_pool_record(ledger, self._pool_id))

    async def submit(self, work: SignedWorkClaim) -> None:
        """Sends the transaction from the node's own account."""
        await self._call(lambda ledger: ledger.work.submit(work.lease, sha256=work.sha256, units=work.units))

    async def close(self) -> None:
        """Closes the connection."""
        stack, self._stack, self._ledger = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    async def _call(self, work: Callable[[Ledger], Awaitable[T]]) -> T:
        async with self._opening:
            if self._ledger is None:
                stack = AsyncExitStack()
                opened = Ledger.connect(
                    self._rpc,
                    self._deployment,
                    key=self._key,
                    clock=self._clock,
                    policy=self._policy,
                    transport=self._transport,
                )
                self._ledger = await stack.enter_async_context(opened)
                self._stack = stack
        return await work(self._ledger)

    async def _terms_and_escrow(self, ledger: Ledger) -> tuple[Terms, datetime | None, int]:
        """Returns the terms, the time when worse terms take effect (or None), and the available escrow.

        The available escrow is the free escrow minus an announced withdrawal, because the owner can make the withdrawal
        at any moment once it is due. All values are cached for a short time.
        """
        now = self._clock.monotonic()
        if self._terms is None or now - self._terms[0] > TERMS_CACHE_TTL.total_seconds():
            terms, pending = await asyncio.gather(
                ledger.pools.terms(self._pool_id), ledger.pools.pending_terms(self._pool_id)
            )
            self._terms = now, terms, pending[1] if pending is not None and _is_worse(pending[0], terms) else None
        if self._escrow is None or now - self._escrow[0] > ESCROW_CACHE_TTL.total_seconds():
            escrow, announced, at = await asyncio.gather(
                ledger.pools.escrow(self._pool_id), ledger.pools.withdrawal(self._pool_id), ledger.now()
            )
            self._escrow = now, escrow.free - announced.takes(at)
        return self._terms[1], self._terms[2], self._escrow[1]

    async def _node_status(self, ledger: Ledger) -> NodeStatus:
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
async def open_chain(
    *, rpc: str, deployment: Deployment, key: Key, pool_id: int, clock: Clock | None = None
) -> AsyncIterator[LedgerChain]:
    """Yields a `LedgerChain` and closes it afterwards."""
    chain = LedgerChain(rpc=rpc, deployment=deployment, key=key, pool_id=pool_id, clock=clock)
    try:
        yield chain
    finally:
        await chain.close()


def describe_error(error: MusterError) -> str:
    """Returns an error and its hint in one line."""
    return f"{error.detail} ({error.hint})" if error.hint else error.detail


def _is_worse(new: Terms, old: Terms) -> bool:
    """Returns whether the new terms have a lower price or a higher penalty."""
    return new.price_per_unit < old.price_per_unit or new.penalty_per_unit > old.penalty_per_unit
