"""A discovery service on a real Redis with an in-process HTTP transport and an in-memory ledger."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from discovery.app import build_discovery
from discovery.chain.ledger_cache import FactChanges, FactStore
from discovery.chain.roles import PoolRole, PoolRoles
from discovery.mailbox.store import Mailbox
from discovery.settings import DiscoverySettings
from protocol.clients.discovery import DiscoveryClient
from protocol.errors import NotFound, Unavailable
from protocol.identifiers import Address, address
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Invite
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import Hardware, Registration, RuntimeKind, Software

SERVICE = Key(b"\x21" * 32)
NODE = Key(b"\x22" * 32)
OTHER_NODE = Key(b"\x23" * 32)
PROVIDER = Key(b"\x24" * 32)
OWNER = Key(b"\x25" * 32)
MANAGER = Key(b"\x26" * 32)
ORCHESTRATOR = Key(b"\x27" * 32)
VALIDATOR = Key(b"\x28" * 32)
STRANGER = Key(b"\x29" * 32)
POOL = 7
POOLS = SigningDomain(31337, address("0x" + "11" * 20))


@dataclass
class SmallLedger:
    """The ledger as discovery reads it: roles when asked, facts round by round. The real one is in test_chain.py."""

    roles_of: dict[Address, PoolRole] = field(
        default_factory=lambda: {
            OWNER.address: PoolRole.OWNER,
            MANAGER.address: PoolRole.MANAGER,
            ORCHESTRATOR.address: PoolRole.ORCHESTRATOR,
            VALIDATOR.address: PoolRole.VALIDATOR,
        }
    )
    is_down: bool = False
    is_stalled: bool = False
    unknown_stalls: bool = False
    unstall: asyncio.Event = field(default_factory=asyncio.Event)
    pools: set[int] = field(default_factory=lambda: {POOL})
    broken: set[int] = field(default_factory=set)
    """Pools with unreadable roles."""
    asked: int = 0

    async def roles(self, pool_id: int) -> PoolRoles:
        self.asked += 1
        if self.is_stalled or (self.unknown_stalls and pool_id not in self.pools):
            await self.unstall.wait()
        if self.is_down or pool_id in self.broken:
            raise Unavailable("the chain is down")
        if pool_id not in self.pools:
            raise NotFound(f"there is no pool {pool_id}", code="unknown-pool")
        return {role: frozenset(who for who, held in self.roles_of.items() if held is role) for role in PoolRole}

    async def read(self, facts: FactStore, _mailbox: Mailbox) -> None:
        """Nothing new; tests write facts themselves."""
        if self.is_down:
            raise Unavailable("the chain is down")

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass
class Place:
    """A running service with clients for it."""

    app: FastAPI
    clock: ManualClock
    ledger: SmallLedger
    _stack: AsyncExitStack

    def http(self, *, ip: str = "192.0.2.1") -> httpx.AsyncClient:
        """Raw HTTP from an IP."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False, client=(ip, 1234))
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self._stack.push_async_callback(client.aclose)
        return client

    def client(self, key: Key, *, ip: str = "192.0.2.1", pinned: bool = True) -> DiscoveryClient:
        """The typed client from an IP."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False, client=(ip, 1234))
        where = "http://127.0.0.1" + (f"#{SERVICE.address}" if pinned else "")
        client = DiscoveryClient(where, key=key, clock=self.clock, transport=transport)
        self._stack.push_async_callback(client.aclose)
        return client

    @property
    def facts(self) -> FactStore:
        facts: FactStore = self.app.state.directory.facts
        return facts

    async def learn(self, **changes: Any) -> None:
        """The ledger says something, and that it has nothing more to say."""
        await self.facts.apply(FactChanges(**changes), as_of_ms=unix_ms(self.clock.now()))


def settings(**changes: Any) -> DiscoverySettings:
    return DiscoverySettings.load(flags={"deployment": Path("deployment.json"), **changes})


Opening = Callable[..., Any]


@pytest.fixture
def open_place(redis_url: str, clock: ManualClock) -> Opening:
    """Opens services that share one Redis and one clock."""

    @asynccontextmanager
    async def opening(ledger: SmallLedger | None = None, **changes: Any) -> AsyncIterator[Place]:
        ledger = ledger or SmallLedger()
        app = build_discovery(
            settings(**changes),
            key=SERVICE,
            pools=POOLS,
            redis=connect_redis(redis_url),
            ledger=ledger,
            clock=clock,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app.router.lifespan_context(app))
            place = Place(app, clock, ledger, stack)
            await place.learn(pools={POOL: True})
            yield place

    return opening


@pytest.fixture
async def place(open_place: Opening) -> AsyncIterator[Place]:
    async with open_place() as opened:
        yield opened


def registration(*, pool_id: int = POOL, **changes: Any) -> Registration:
    return Registration(
        pool_id=pool_id,
        hardware=Hardware(
            cpu_model="A CPU", cpu_cores=8, architecture="x86_64", memory_bytes=32 << 30, disk_free_bytes=1 << 40
        ),
        software=Software(
            worker_version="0.1.0", protocol_version=1, operating_system="Debian 12", runtimes=(RuntimeKind.DOCKER,)
        ),
        **changes,
    )


def invite(
    now: datetime,
    *,
    signer: Key = ORCHESTRATOR,
    lasts: timedelta = timedelta(hours=1),
    domain: SigningDomain = POOLS,
    node: Address = NODE.address,
    pool_id: int = POOL,
    url: str = "https://pool.example",
) -> SignedInvite:
    made = Invite(
        pool_id=pool_id,
        domain_id=1,
        node=node,
        nonce=secrets.randbits(64),
        expiry=int((now + lasts).timestamp()),
        url=url,
    )
    return SignedInvite.of(made, domain=domain, signature=made.sign(signer, domain))
