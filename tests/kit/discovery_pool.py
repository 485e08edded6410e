"""A pool on a real embedded chain, as tests of discovery need it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from ledger.client import Ledger
from ledger.client.pools import Roles, Terms
from ledger.deployment import Deployment, deploy
from ledger.devchain import ChainProcess
from ledger.rpc.connection import connect
from ledger.transactions.sender import TransactionSender
from protocol.identifiers import Address, digest
from protocol.identity.keys import Key
from protocol.node_registration import NodeConsent

UNIT = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOnChain:
    """A chain with the contracts, a domain and one active pool, number 1."""

    chain: ChainProcess
    deployment: Deployment

    def key(self, index: int) -> Key:
        return Key.from_hex(self.chain.accounts[index].key)

    @property
    def governor(self) -> Key:
        return self.key(0)

    @property
    def provider(self) -> Key:
        return self.key(1)

    @property
    def owner(self) -> Key:
        return self.key(2)

    @property
    def manager(self) -> Key:
        return self.key(3)

    @property
    def orchestrator(self) -> Key:
        return self.key(4)

    @property
    def validator(self) -> Key:
        return self.key(5)

    @asynccontextmanager
    async def ledger(self, key: Key) -> AsyncIterator[Ledger]:
        async with Ledger.connect(self.chain.url, self.deployment, key=key) as ledger:
            yield ledger

    async def register(self, node: Key, *, stake: int) -> None:
        """The provider stakes and puts a node in service."""
        async with self.ledger(self.governor) as governor:
            await governor.token.mint(self.provider.address, stake)
        async with self.ledger(self.provider) as ledger:
            await ledger.stake.add(stake)
            deadline = await ledger.now() + timedelta(hours=1)
            consent = NodeConsent(
                provider=self.provider.address,
                node=node.address,
                nonce=await ledger.registry.consent_nonce(node.address),
                deadline=int(deadline.timestamp()),
            )
            await ledger.registry.register(
                node=node.address,
                specs_hash=digest(b"\x01" * 32),
                capacity=1,
                deadline=deadline,
                node_signature=consent.sign(node, ledger.registry.domain),
            )


async def make_pool(chain: ChainProcess) -> PoolOnChain:
    """Deploys everything and creates the pool."""
    governor = Key.from_hex(chain.accounts[0].key)
    web3 = await connect(chain.url, expected_chain_id=chain.chain_id)
    async with TransactionSender(web3, governor.account(), chain_id=chain.chain_id) as sender:
        made = await deploy(web3, sender, governor=governor.address, unbonding_period=timedelta(days=30))
    await web3.provider.disconnect()
    place = PoolOnChain(chain=chain, deployment=made)
    async with place.ledger(governor) as ledger:
        domain = await ledger.domains.create(name="tests")
    async with place.ledger(place.owner) as ledger:
        pool_id = await ledger.pools.create(domain_id=domain, roles=roles_of(place), terms=terms())
        await ledger.pools.activate(pool_id)
        await ledger.pools.add_validator(pool_id, place.validator.address)
    return place


def roles_of(place: PoolOnChain) -> Roles:
    publisher: Address = place.key(6).address
    return Roles(manager=place.manager.address, orchestrator=place.orchestrator.address, publisher=publisher)


def terms() -> Terms:
    hour = timedelta(hours=1)
    return Terms.deterring(
        Terms(
            price_per_unit=1,
            penalty_per_unit=0,
            stake_per_capacity=UNIT,
            audit_floor_bps=1000,
            look_bps=0,
            judge_period=hour,
            challenge_period=hour,
            dispute_period=hour,
            notice_period=hour,
            max_nodes=100,
            min_capacity=1,
            verdict_fee=0,
        )
    )
