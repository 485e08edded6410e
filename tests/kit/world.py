"""A pool on a real chain: contracts, a domain, a funded active pool and a key for each role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
import pytest_asyncio

from ledger.amounts import UNIT
from ledger.client import Ledger
from ledger.client.pools import Roles, Terms
from ledger.deployment import Deployment, deploy
from ledger.devchain import ChainProcess
from ledger.rpc.connection import connect
from ledger.transactions.pending import TransactionCall
from ledger.transactions.sender import SendPolicy, TransactionSender
from protocol.identifiers import ZERO_DIGEST, Digest, run_id
from protocol.identity.keys import Key
from protocol.invites import Invite
from protocol.leases import Lease, WorkClaim
from protocol.node_registration import NodeConsent
from protocol.wire.leases import SignedLease, SignedWorkClaim
from tests.kit.chain import LiveChain
from tests.kit.chain_controls import ChainControls

UNBONDING = timedelta(days=7)
TERMS = Terms.deterring(
    Terms(
        price_per_unit=UNIT // 100,
        penalty_per_unit=0,
        stake_per_capacity=10 * UNIT,
        audit_floor_bps=5_000,
        look_bps=0,
        judge_period=timedelta(hours=1),
        challenge_period=timedelta(hours=2),
        dispute_period=timedelta(hours=3),
        notice_period=timedelta(hours=4),
        max_nodes=10,
        min_capacity=1,
        verdict_fee=UNIT // 1_000,
    )
)
POOL = 1
SALT = Digest("0x" + "5a" * 32)
ROLES = ("governor", "owner", "manager", "orchestrator", "publisher", "validator", "second", "third", "provider")
URL = "https://orchestrator.example"


@dataclass
class World:
    """Everybody's ledger, and the time machine."""

    url: str
    controls: ChainControls
    deployment: Deployment
    keys: dict[str, Key]
    stack: AsyncExitStack
    opened: dict[str, Ledger] = field(default_factory=dict)

    async def as_(self, name: str) -> Ledger:
        """The ledger as `name` sees and writes it."""
        if name not in self.opened:
            ledger = Ledger.connect(self.url, self.deployment, key=self.keys[name], policy=QUICK)
            self.opened[name] = await self.stack.enter_async_context(ledger)
        return self.opened[name]

    async def warp(self, by: timedelta) -> None:
        """Turns the chain's time forward."""
        await self.controls.warp(by)

    async def register(self, node: str = "node", provider: str = "provider", capacity: int = 1) -> None:
        """Registers a node under a provider."""
        ledger, key = await self.as_(provider), self.keys[node]
        deadline = await ledger.now() + timedelta(minutes=5)
        consent = NodeConsent(
            provider=ledger.address,
            node=key.address,
            nonce=await ledger.registry.consent_nonce(key.address),
            deadline=int(deadline.timestamp()),
        )
        await ledger.registry.register(
            node=key.address,
            specs_hash=ZERO_DIGEST,
            capacity=capacity,
            deadline=deadline,
            node_signature=consent.sign(key, ledger.registry.domain),
        )

    async def invite(self, node: str = "node", *, nonce: int = 1, signer: str = "orchestrator") -> tuple[Invite, bytes]:
        """An invite and its signature."""
        ledger = await self.as_("owner")
        expiry = int((await ledger.now()).timestamp()) + 600
        terms = Invite(pool_id=POOL, domain_id=1, node=self.keys[node].address, nonce=nonce, expiry=expiry, url=URL)
        return terms, terms.sign(self.keys[signer], ledger.pools.domain)

    async def join(self, node: str = "node", *, nonce: int = 1) -> None:
        """Makes a registered node a member."""
        terms, signature = await self.invite(node, nonce=nonce)
        await (await self.as_(node)).pools.join(terms, orchestrator_signature=signature)

    async def member(self) -> None:
        """A provider with stake and one node that is a member."""
        await (await self.as_("provider")).stake.add(100 * UNIT)
        await self.register()
        await self.join()

    async def submission(
        self, *, index: int = 0, units: int = 100, signer: str = "orchestrator", node: str = "node", lasts: int = 600
    ) -> SignedWorkClaim:
        """Leased and signed work, ready to be carried."""
        ledger, key = await self.as_("owner"), self.keys[node]
        lease = Lease(
            pool_id=POOL,
            run=run_id("main"),
            step=0,
            index=index,
            node=key.address,
            version=1,
            digest=ZERO_DIGEST,
            beacon_block=1,
            salt=SALT,
            groups=1,
            max_units=100,
            expiry=int((await ledger.now()).timestamp()) + lasts,
        )
        sha256 = Digest("0x" + f"{index:064x}")
        words = WorkClaim(lease_hash=lease.hash, sha256=sha256, units=units)
        domain = ledger.work.domain
        signed = SignedLease.of(lease, domain=domain, signature=lease.sign(self.keys[signer], domain))
        signature = "0x" + words.sign(key, domain).hex()
        return SignedWorkClaim(lease=signed, sha256=sha256, units=units, signature=signature)

    async def submitted(self, *, index: int = 0, units: int = 100) -> Digest:
        """The key of submitted work."""
        item = await self.submission(index=index, units=units)
        assert await (await self.as_("orchestrator")).work.submit_batch([item]) == []
        return item.lease.lease.key.hash


QUICK = replace(SendPolicy(), poll=timedelta(milliseconds=20))


@dataclass(frozen=True, slots=True)
class Founded:
    """The contracts on the session's chain, and the keys of everybody in it."""

    deployment: Deployment
    keys: dict[str, Key]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def founded(development_process: ChainProcess) -> Founded:
    """Deploys once: it takes seconds, and every test works on a snapshot of it."""
    return await found(development_process)


async def found(process: ChainProcess) -> Founded:
    """Deploys the contracts, and makes the pool with everybody in it."""
    url, chain_id = process.url, process.chain_id
    keys = {name: Key.generate() for name in (*ROLES, "node", "node-2")}
    web3 = await connect(url, expected_chain_id=chain_id)
    bank = Key.from_hex(process.accounts[0].key)
    async with TransactionSender(web3, bank.account(), chain_id=chain_id, policy=QUICK) as sender:
        calls = [TransactionCall(to=key.address, value=UNIT) for key in keys.values()]
        await asyncio.gather(*[sender.send(call, deadline=timedelta(seconds=30)) for call in calls])
    async with TransactionSender(web3, keys["governor"].account(), chain_id=chain_id, policy=QUICK) as sender:
        deployment = await deploy(web3, sender, governor=keys["governor"].address, unbonding_period=UNBONDING)
    await web3.provider.disconnect()
    async with Ledger.connect(url, deployment, key=keys["governor"], policy=QUICK) as governor:
        await governor.domains.create(name="text")
        await governor.token.mint(keys["owner"].address, 1_000 * UNIT)
        await governor.token.mint(keys["provider"].address, 1_000 * UNIT)
    async with Ledger.connect(url, deployment, key=keys["owner"], policy=QUICK) as owner:
        roles = Roles(keys["manager"].address, keys["orchestrator"].address, keys["publisher"].address)
        await owner.pools.create(domain_id=1, roles=roles, terms=TERMS, data_uri="ipfs://pool")
        await owner.pools.activate(POOL)
        await owner.pools.fund(POOL, 100 * UNIT)
        for name in ("validator", "second", "third"):
            await owner.pools.add_validator(POOL, keys[name].address)
    return Founded(deployment, keys)


@pytest.fixture
async def world(founded: Founded, development_chain: LiveChain) -> AsyncIterator[World]:
    """Yields a world for one test; its changes are undone afterwards."""
    async with AsyncExitStack() as stack:
        yield World(development_chain.url, development_chain.controls, founded.deployment, founded.keys, stack)
