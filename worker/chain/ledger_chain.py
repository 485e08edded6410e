"""The worker's access to the ledger: all its reads and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

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
"""Maximum error of this machine's clock for which the worker still accepts valid leases.

It is the same as for signed requests (`CLOCK_WINDOW`).
"""
TERMS_CACHE_TTL = timedelta(minutes=1)
"""Time for which terms are cached. This is safe, because new terms take effect only after a notice period."""
ESCROW_CACHE_TTL = timedelta(seconds=10)
"""Time for which the escrow is cached. This is safe, because an announced withdrawal takes effect only after the notice
period.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Status of a node on the ledger, with the pool's requirements for joining.

    Args:
        provider: Address that registered the node; None if the node is not registered.
        member: Whether the node is a member of the pool.
        banned: Whether the pool has banned the node or its provider.
        active: Whether the pool is active, so that nodes can join it.
        capacity: Capacity with which the node is registered.
        min_capacity: Minimum capacity that the pool requires.
        free_stake: Stake of the provider that is not locked yet, in the token's smallest unit.
        needed_stake: Stake that joining locks, in the token's smallest unit.
        gas: Balance of the node's account for gas, in wei.
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
        """Returns an obstacle to joining and how to remove it; None if there is none."""
        free, needed = format_amount(self.free_stake), format_amount(self.needed_stake)
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
                "the pool is not active",
                "wait for its owner to activate it, or choose another pool",
            ),
            (
                self.capacity < self.min_capacity,
                f"the node is registered with capacity {self.capacity}, but the pool requires {self.min_capacity}",
                "choose another pool, or register the machine's real capacity with `muster node update`",
            ),
            (
                self.free_stake < self.needed_stake,
                f"the provider has {free} MUST of free stake, but joining locks {needed} MUST",
                "add stake with `muster stake add`",
            ),
        )
        if self.member:
            return None
        return next(((what, hint) for is_so, what, hint in checks if is_so), None)


class Payment(StrEnum):
    """Payment state of submitted work."""

    OPEN = "open"
    """The work is not final: it can still be judged, disputed or paid."""
    PAID = "paid"
    UNPAID = "unpaid"
    """A verdict other than "accepted" is final."""
    EXPIRED = "expired"
    """No validator judged the work within the judging period."""


class LedgerChain:
    """Ledger operations of a worker, over JSON-RPC.

    All methods raise `Unavailable` errors while the chain is down. Each call connects if there is no connection, so a
    worker can start while the chain is down.

    Args:
        rpc: URL of a JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        key: The node's key.
        pool_id: Pool of this node.
        policy: Fee, retry and time-out policy of transactions.
        clock: Clock that measures cache ages and deadlines; the system's by default.
        transport: HTTP transport to a chain in the same process, for tests and simulations.
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
        """EIP-712 domain of `ComputePools`, the contract that accepts invites."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.COMPUTE_POOLS])

    @property
    def work_domain(self) -> SigningDomain:
        """EIP-712 domain of `WorkLedger`, the contract that accepts work."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.WORK_LEDGER])

    async def node_status(self) -> NodeStatus:
        """Reads this node's status from the registry, stake and pool contracts."""
        return await self._call(self._node_status)

    async def orchestrator(self) -> Address:
        """Returns the address of the pool's current orchestrator key."""

        async def read(ledger: Ledger) -> Address:
            return (await ledger.pools.role_holder(self._pool_id, Role.ORCHESTRATOR)).holder

        return await self._call(read)

    async def pool_url(self) -> str:
        """Returns the URL of the pool that its owner put on the ledger; empty if there is none."""

        async def read(ledger: Ledger) -> str:
            return (await ledger.pools.get(self._pool_id)).data_uri

        uri = await self._call(read)
        return uri.rstrip("/") if uri.startswith(("https://", "http://")) else ""

    async def is_orchestrator(self, who: Address) -> bool:
        """Returns whether `who` may now sign for the pool as its orchestrator.

        It may if it is the current key, or the previous key before its announced end.
        """
        return await self._call(lambda ledger: ledger.pools.is_orchestrator(self._pool_id, who))

    async def join(self, invite: SignedInvite) -> None:
        """Redeems an invite; this node pays the gas.

        Raises:
            MusterError: The ledger refuses the invite. The error gives the reason.
        """

        async def send(ledger: Ledger) -> None:
            await ledger.pools.join(invite.invite, orchestrator_signature=invite.raw_signature)

        await self._call(send)

    async def leave(self) -> None:
        """Ends this node's membership of the pool; this node pays the gas.

        It does nothing if the node is not a member.
        """

        async def send(ledger: Ledger) -> None:
            if await ledger.pools.membership(self._pool_id, self._key.address) is not None:
                await ledger.pools.leave(self._pool_id, self._key.address)

        await self._call(send)

    async def joins(self) -> int:
        """Returns how often this node has joined the pool, which is the nonce of a signed leave."""
        return await self._call(lambda ledger: ledger.pools.joins(self._pool_id, self._key.address))

    async def pay_fault_of(self, lease: Lease, now: datetime) -> str:
        """Returns why work under a lease might be accepted but not paid, as text.

        The text is empty if the payment is certain. The method compares the lease with the pool's notice period,
        announced terms and escrow.

        Args:
            lease: The lease.
            now: Current time by a clock, not the newest block's time, which may be old on an idle chain.

        Raises:
            ChainUnavailable: The chain does not answer.
        """
        terms, worse_from, available = await self._call(self._terms_and_escrow)
        expiry = datetime.fromtimestamp(min(lease.expiry, 2**37), UTC)
        notice, most = terms.notice_period, terms.price_per_unit * lease.max_units + terms.reserved_fees
        # The contract pays for leases that end within the notice period even if the owner removes the node or withdraws
        # the escrow. Work under a longer lease could be accepted but not paid.
        if (left := expiry - now) > notice + CLOCK_TOLERANCE:
            return (
                f"it lasts {left.total_seconds():.0f} s, but the pool's escrow and this node's membership are "
                f"guaranteed only for the notice period of {notice.total_seconds():.0f} s"
            )
        if worse_from is not None and expiry >= worse_from:
            return f"it ends after {worse_from:%Y-%m-%d %H:%M:%S} UTC, when worse terms (price or penalty) take effect"
        if most > available:
            return (
                f"its work may cost {format_amount(most)} MUST, but only {format_amount(max(0, available))} MUST of "
                "the pool's escrow are neither reserved for open work nor announced for withdrawal"
            )
        return ""

    async def fault_of(self, lease: Lease, beacon: Digest) -> str:
        """Compares a lease of this node with the chain; returns how they contradict each other, as text.

        The text is empty if lease and chain agree.

        Args:
            lease: The lease.
            beacon: Hash of the lease's beacon block according to the orchestrator.
        """
        return await self._call(lambda ledger: self._lease_verifier.fault(ledger, lease, beacon=beacon))

    async def now(self) -> datetime:
        """Returns the time of the newest block.

        Contracts use this time to decide whether a lease has expired.
        """
        return await self._call(lambda ledger: ledger.now())

    async def work(self, key: WorkKey) -> WorkRecord | None:
        """Returns the work record under a work key; None if there is none."""
        return await self._call(lambda ledger: ledger.work.get(key.hash))

    async def payment(self, key: WorkKey) -> Payment | None:
        """Returns the payment state of work; None if the work was never submitted.

        Work past its judging deadline counts as expired even before the contract marks it so.
        """
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
        """Returns how the pool's newest work ended, and the announced withdrawal from its escrow.

        It reads the events of a bounded number of blocks.
        """
        return await self._call(lambda ledger: read_pool_record(ledger, self._pool_id))

    async def submit(self, work: SignedWorkClaim) -> None:
        """Submits work; this node pays the gas.

        Raises:
            TransactionReverted: The ledger refuses the work. The error gives the reason.
            InsufficientFunds: The node's account has too little for the gas.
        """
        await self._call(lambda ledger: ledger.work.submit(work.lease, sha256=work.sha256, units=work.units))

    async def close(self) -> None:
        """Closes the connection to the RPC endpoint."""
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
        """Returns the terms, the time of worse terms, and the available escrow.

        The time is None if no worse terms are announced.

        An announced withdrawal is subtracted from the free escrow, because the owner can make the withdrawal at any
        moment once it is due. All values are cached for a short time.
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
    """Context manager that yields a `LedgerChain` and closes it at the end."""
    chain = LedgerChain(rpc=rpc, deployment=deployment, key=key, pool_id=pool_id, clock=clock)
    try:
        yield chain
    finally:
        await chain.close()


def describe_error(error: MusterError) -> str:
    """Returns an error with its hint as one line of text."""
    return f"{error.detail} ({error.hint})" if error.hint else error.detail


def _is_worse(new: Terms, old: Terms) -> bool:
    """Returns whether the new terms have a lower price or a higher penalty."""
    return new.price_per_unit < old.price_per_unit or new.penalty_per_unit > old.penalty_per_unit
