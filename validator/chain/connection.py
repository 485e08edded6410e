"""The validator's connection to the chain and the objects that need this connection, created at their first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

import httpx

from ledger.client import Ledger
from ledger.client.pools import Terms
from ledger.deployment import Deployment
from ledger.transactions.pending import SendPolicy
from protocol.errors import Unavailable
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from validator.audit.epochs import Epochs
from validator.chain.reorgs import ReorgTracker
from validator.chain.submission_facts import FactFinder

T = TypeVar("T")

REQUEST_TIMEOUT = timedelta(seconds=10)
"""Timeout of one JSON-RPC request."""
CACHED_FOR = timedelta(seconds=30)
"""Time for which terms, roles and validators of the pool are cached."""


class NotPoolValidator(Unavailable):
    """The pool does not list this validator's key, so the ledger would refuse its verdicts."""

    code = "not-seated"
    default_hint = "ask the pool's owner to add the key: `muster pool roles --add-validator`"


@dataclass(frozen=True, slots=True)
class Connected:
    """Objects that use one connection to the chain."""

    ledger: Ledger
    reorgs: ReorgTracker
    facts: FactFinder
    epochs: Epochs


class PoolChain:
    """Client of one pool on one chain, with the validator's key. The client connects at its first use.

    Args:
        url: URL of the JSON-RPC endpoint.
        deployment: Chain id and addresses of the contracts.
        key: The validator's key, which signs transactions.
        pool_id: Id of the pool.
        confirmations: Number of blocks that must be on top of a block before the validator uses the block's events.
        clock: Clock of caches and requests.
        policy: Settings of the transaction sender.
        transport: HTTP transport to a chain in the same process, for simulations; None for the network.
    """

    def __init__(
        self,
        url: str,
        deployment: Deployment,
        *,
        key: Key,
        pool_id: int,
        confirmations: int,
        clock: Clock,
        policy: SendPolicy,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.deployment = deployment
        self.pool_id = pool_id
        self.confirmations = confirmations
        self._url = url
        self._key = key
        self._clock = clock
        self._policy = policy
        self._transport = transport
        self._stack = AsyncExitStack()
        self._connected: Connected | None = None
        self._connecting = asyncio.Lock()
        self._ahead = timedelta()
        self._terms = _Fresh[Terms](clock)
        self._validators = _Fresh[list[Address]](clock)
        self._is_validator = _Fresh[bool](clock)

    async def connected(self) -> Connected:
        """Returns the connection; opens it at the first call.

        Raises:
            ChainUnavailable: The RPC endpoint does not answer.
            WrongChain, DeploymentDiffers: The endpoint serves another chain or other contracts than the settings name.
        """
        async with self._connecting:
            if self._connected is None:
                opening = Ledger.connect(
                    self._url,
                    self.deployment,
                    key=self._key,
                    timeout=REQUEST_TIMEOUT,
                    clock=self._clock,
                    policy=self._policy,
                    transport=self._transport,
                )
                ledger = await self._stack.enter_async_context(opening)
                reorgs = ReorgTracker(ledger)
                facts = FactFinder(ledger, pool_id=self.pool_id, reorgs=reorgs)
                epochs = Epochs(ledger, self._key, pool_id=self.pool_id, settled=self.confirmations)
                self._connected = Connected(ledger, reorgs, facts, epochs)
            return self._connected

    async def ledger(self) -> Ledger:
        """Returns the ledger client with the validator's key."""
        return (await self.connected()).ledger

    async def now(self) -> datetime:
        """Returns the newest block's time. The read also detects a reorg, which invalidates cached chain data."""
        connected = await self.connected()
        newest = await connected.ledger.newest()
        await connected.reorgs.observe(newest)
        now = datetime.fromtimestamp(newest.time, UTC)
        self._ahead = now - self._clock.now()
        return now

    def about_now(self) -> datetime:
        """Estimates the chain's time without a read: local time plus the difference at the last call of `now`."""
        return self._clock.now() + self._ahead

    async def terms(self) -> Terms:
        """Returns the pool's terms in force; cached for 30 s."""

        async def read() -> Terms:
            return await (await self.ledger()).pools.terms(self.pool_id)

        return await self._terms.get(read)

    async def validators(self) -> list[Address]:
        """Returns the addresses of the pool's validators; cached for 30 s."""

        async def read() -> list[Address]:
            return await (await self.ledger()).pools.validators(self.pool_id)

        return await self._validators.get(read)

    async def is_pool_validator(self) -> bool:
        """Returns True if the pool lists this validator's key; cached for 30 s."""

        async def read() -> bool:
            return await (await self.ledger()).pools.is_validator(self.pool_id, self._key.address)

        return await self._is_validator.get(read)

    async def check(self) -> None:
        """Reads the newest block's number, to test whether the chain answers; part of the self-test.

        Raises:
            ChainUnavailable: The RPC endpoint does not answer.
        """
        await (await self.ledger()).block()

    async def aclose(self) -> None:
        """Closes the connection. Transactions that were sent may still be mined."""
        self._connected = None
        await self._stack.aclose()


class _Fresh(Generic[T]):
    """A cached value, which `get` reads again if the last read is older than `CACHED_FOR`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value: tuple[float, T] | None = None

    async def get(self, read: Callable[[], Awaitable[T]]) -> T:
        now = self._clock.monotonic()
        if self._value is None or self._value[0] <= now:
            self._value = (now + CACHED_FOR.total_seconds(), await read())
        return self._value[1]
