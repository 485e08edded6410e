"""All that the worker asks of the ledger and writes to it, in its own words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.pools import PoolStatus, Role
from ledger.client.work import Submission
from ledger.deployment import Deployment
from ledger.inflight import SendPolicy
from protocol.errors import MusterError
from protocol.identifiers import Address, Digest
from protocol.keys import Key
from protocol.leases import Lease, WorkKey
from protocol.typed_data import SigningDomain
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedWork
from worker.beacons import Beacons

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
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
class SubmittedWork:
    """What the ledger has under a work key."""

    sha256: Digest
    units: int


class Chain(Protocol):
    """The ledger, as far as a worker needs it. Everything raises `Unavailable` errors while the chain is down."""

    @property
    def invites_domain(self) -> SigningDomain:
        """The contract that takes invites."""
        ...

    @property
    def work_domain(self) -> SigningDomain:
        """The contract that takes work under leases."""
        ...

    async def standing(self) -> Standing:
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

    async def fault_of(self, lease: Lease, beacon: Digest, block: int) -> str:
        """What the chain says against a grant of this node's, in words; empty if it bears it out. See `Beacons`."""
        ...

    async def now(self) -> datetime:
        """The time of the newest block, which is what leases end by."""
        ...

    async def work(self, key: WorkKey) -> SubmittedWork | None:
        """What was submitted under this key; None if nothing was."""
        ...

    async def submit(self, work: SignedWork) -> None:
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
        self._beacons = Beacons()

    @property
    def invites_domain(self) -> SigningDomain:
        """`ComputePools` on this chain."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.COMPUTE_POOLS])

    @property
    def work_domain(self) -> SigningDomain:
        """`WorkLedger` on this chain."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.WORK_LEDGER])

    async def standing(self) -> Standing:
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

    async def fault_of(self, lease: Lease, beacon: Digest, block: int) -> str:
        """Asks the chain once for each version and block; remembered afterwards."""
        return await self._with(lambda ledger: self._beacons.fault(ledger, lease, beacon=beacon, block=block))

    async def now(self) -> datetime:
        """By the newest block."""
        return await self._with(lambda ledger: ledger.now())

    async def work(self, key: WorkKey) -> SubmittedWork | None:
        """Asks `WorkLedger`."""
        found = await self._with(lambda ledger: ledger.work.get(key.hash))
        return None if found is None else SubmittedWork(sha256=found.sha256, units=found.units)

    async def submit(self, work: SignedWork) -> None:
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

    async def _standing(self, ledger: Ledger) -> Standing:
        node = self._key.address
        found = await ledger.registry.node(node)
        pool, terms = await ledger.pools.get(self._pool_id), await ledger.pools.terms(self._pool_id)
        registered = found is not None and not found.retired
        provider = found.provider if found is not None and registered else None
        capacity = found.capacity if found is not None else 0
        return Standing(
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
