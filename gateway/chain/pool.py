"""Reads the pool, its members and the run's versions from the ledger, with bounded caches."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Protocol

import httpx

from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.checkpoints import Announcement
from ledger.client.pools import Role
from ledger.deployment import Deployment
from protocol.errors import NotFound
from protocol.http.lookups import Lookups
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.clock import Clock

REQUEST_TIMEOUT = timedelta(seconds=5)
"""Time limit of one request to the RPC endpoint."""
FRESH = timedelta(seconds=10)
"""Age up to which an answer of the chain is used without a read."""
STALE = timedelta(minutes=10)
"""Age up to which an answer is used while the chain is down."""


class GatewayLedger(Protocol):
    """Interface of the ledger that the gateway reads. Every method may raise `Unavailable` while the chain is down."""

    @property
    def domain(self) -> SigningDomain:
        """EIP-712 domain of the `WorkLedger` contract, for leases and lists."""
        ...

    async def orchestrators(self) -> frozenset[Address]:
        """Returns the keys that may sign the pool's leases now."""
        ...

    async def provider_of(self, node: Address) -> Address | None:
        """Returns the provider of a member; None if the node is not a member now."""
        ...

    async def version(self, version: int) -> Digest | None:
        """Returns the digest that is announced for a version; None if there is none."""
        ...

    async def latest(self) -> tuple[int, Digest] | None:
        """Returns the newest announced version; None before the first announcement."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


class LedgerLink:
    """Reads the ledger over JSON-RPC; implements `GatewayLedger`. It connects on first use.

    Args:
        chain_url: JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        pool_id: Number of the pool.
        run: Id of the run.
        clock: Clock of key rotations.
        transport: HTTP transport for a chain that runs in the same process; None: the network.
    """

    def __init__(
        self,
        chain_url: str,
        deployment: Deployment,
        *,
        pool_id: int,
        run: Digest,
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._chain_url = chain_url
        self._deployment = deployment
        self._pool_id = pool_id
        self._run = run
        self._clock = clock
        self._transport = transport
        self._stack = AsyncExitStack()
        self._ledger: Ledger | None = None
        self._opening = asyncio.Lock()

    @property
    def domain(self) -> SigningDomain:
        """EIP-712 domain of the `WorkLedger` contract."""
        return SigningDomain(self._deployment.chain_id, self._deployment[Contract.WORK_LEDGER])

    async def orchestrators(self) -> frozenset[Address]:
        """Returns the keys that may sign the pool's leases now."""
        ledger = await self._connected()
        return (await ledger.pools.role_holder(self._pool_id, Role.ORCHESTRATOR)).keys(self._clock.now())

    async def provider_of(self, node: Address) -> Address | None:
        """Returns the provider of a member; None if the node is not a member now."""
        ledger = await self._connected()
        membership = await ledger.pools.membership(self._pool_id, node)
        return None if membership is None else membership.provider

    async def version(self, version: int) -> Digest | None:
        """Returns the digest that is announced for a version; None if there is none."""
        return _digest_of(await (await self._connected()).checkpoints.get(self._pool_id, self._run, version))

    async def latest(self) -> tuple[int, Digest] | None:
        """Returns the newest announced version; None before the first announcement."""
        found = await (await self._connected()).checkpoints.latest(self._pool_id, self._run)
        return None if found is None else (found.version, found.digest)

    async def aclose(self) -> None:
        """Closes the connection."""
        self._ledger = None
        await self._stack.aclose()

    async def _connected(self) -> Ledger:
        async with self._opening:
            if self._ledger is None:
                opening = Ledger.connect(
                    self._chain_url,
                    self._deployment,
                    timeout=REQUEST_TIMEOUT,
                    clock=self._clock,
                    transport=self._transport,
                )
                self._ledger = await self._stack.enter_async_context(opening)
            return self._ledger


class CachedLedger:
    """The ledger behind bounded caches, because any key can sign requests that cause reads.

    Args:
        ledger: The ledger.
        clock: Clock for the age of cached answers.
    """

    def __init__(self, ledger: GatewayLedger, *, clock: Clock) -> None:
        self.ledger = ledger
        self._orchestrators: Lookups[None, frozenset[Address]] = Lookups(
            lambda _: ledger.orchestrators(),
            what=lambda _: "reading the pool's orchestrator key",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
        )
        self._members: Lookups[Address, Address] = Lookups(
            self._read_member,
            what=lambda node: f"reading the membership of {node}",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
        )
        self._versions: Lookups[int, Digest] = Lookups(
            self._read_version,
            what=lambda version: f"reading version {version}",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
        )
        self._latest: Lookups[None, tuple[int, Digest]] = Lookups(
            lambda _: self._read_latest(),
            what=lambda _: "reading the newest version",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
        )

    @property
    def domain(self) -> SigningDomain:
        """EIP-712 domain of leases and lists."""
        return self.ledger.domain

    async def orchestrators(self) -> frozenset[Address]:
        """Returns the keys that may sign the pool's leases."""
        return await self._orchestrators.get(None)

    async def provider_of(self, node: Address) -> Address:
        """Returns the provider of a member.

        Raises:
            NotFound: The node is not a member of the pool.
        """
        return await self._members.get(node)

    async def version(self, version: int) -> Digest:
        """Returns the digest of an announced version.

        Raises:
            NotFound: The version is not announced.
        """
        return await self._versions.get(version)

    async def latest(self) -> tuple[int, Digest]:
        """Returns the newest announced version.

        Raises:
            NotFound: No version is announced.
        """
        return await self._latest.get(None)

    async def _read_member(self, node: Address) -> Address:
        provider = await self.ledger.provider_of(node)
        if provider is None:
            raise NotFound(f"{node} is not a member of the pool", hint="join the pool first", code="not-a-member")
        return provider

    async def _read_version(self, version: int) -> Digest:
        digest = await self.ledger.version(version)
        if digest is None:
            raise NotFound(f"version {version} is not announced on the ledger", code="unknown-version")
        return digest

    async def _read_latest(self) -> tuple[int, Digest]:
        latest = await self.ledger.latest()
        if latest is None:
            raise NotFound(
                "the run has no version on the ledger",
                hint="the pool's owner publishes one: `muster trainer publish`",
                code="unknown-version",
            )
        return latest


def _digest_of(announcement: Announcement | None) -> Digest | None:
    return None if announcement is None else announcement.digest
