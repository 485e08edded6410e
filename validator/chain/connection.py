"""The validator's connection to the chain and the objects that need it, created at the first use."""

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

ANSWER_PATIENCE = timedelta(seconds=10)
GOOD_FOR = timedelta(seconds=30)
"""Cache time of terms, roles and validators."""


class NotSeated(Unavailable):
    """This key is not a validator of the pool."""

    code = "not-seated"
    default_hint = "the pool's owner adds it: `muster pool roles --add-validator`"


@dataclass(frozen=True, slots=True)
class Connected:
    """Objects that need a connection."""

    ledger: Ledger
    reorgs: ReorgTracker
    facts: FactFinder
    epochs: Epochs


class PoolChain:
    """One pool on one chain, accessed with the validator's key.

    Args:
        url: JSON-RPC endpoint.
        deployment: Addresses of the contracts.
        key: The validator's key.
        pool_id: The pool.
        confirmations: Blocks on top of a block before its events count.
        clock: Clock of caches.
        policy: Policy for sending transactions.
        transport: HTTP transport to a chain in the same process.
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
        self._seated = _Fresh[bool](clock)

    async def connected(self) -> Connected:
        """Returns the connection; opens it at the first call.

        Raises:
            ChainUnavailable: The RPC node does not answer.
            WrongChain, DeploymentDiffers: It is another chain than in the settings.
        """
        async with self._connecting:
            if self._connected is None:
                opening = Ledger.connect(
                    self._url,
                    self.deployment,
                    key=self._key,
                    timeout=ANSWER_PATIENCE,
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
        """Reads the chain's time; also detects a reorg and invalidates data cached before it."""
        connected = await self.connected()
        newest = await connected.ledger.newest()
        await connected.reorgs.observe(newest)
        now = datetime.fromtimestamp(newest.time, UTC)
        self._ahead = now - self._clock.now()
        return now

    def about_now(self) -> datetime:
        """Returns the last known chain time, without a read."""
        return self._clock.now() + self._ahead

    async def terms(self) -> Terms:
        """Returns the pool's terms; cached for a short time."""

        async def read() -> Terms:
            return await (await self.ledger()).pools.terms(self.pool_id)

        return await self._terms.get(read)

    async def validators(self) -> list[Address]:
        """Returns the pool's validators; cached for a short time."""

        async def read() -> list[Address]:
            return await (await self.ledger()).pools.validators(self.pool_id)

        return await self._validators.get(read)

    async def is_seated(self) -> bool:
        """Returns whether the validator's key may judge the pool's work; cached for a short time."""

        async def read() -> bool:
            return await (await self.ledger()).pools.is_validator(self.pool_id, self._key.address)

        return await self._seated.get(read)

    async def check(self) -> None:
        """Returns if the chain answers; a readiness check."""
        await (await self.ledger()).block()

    async def aclose(self) -> None:
        """Closes the connection; sent transactions may still be mined."""
        self._connected = None
        await self._stack.aclose()


class _Fresh(Generic[T]):
    """A value that is read again after its cache time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value: tuple[float, T] | None = None

    async def get(self, read: Callable[[], Awaitable[T]]) -> T:
        now = self._clock.monotonic()
        if self._value is None or self._value[0] <= now:
            self._value = (now + GOOD_FOR.total_seconds(), await read())
        return self._value[1]
