"""Discovery on a real chain: roles from the ledger and facts from events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NoReturn

import pytest
import pytest_asyncio
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from redis.asyncio import Redis

from discovery.chain.ledger_cache import FactStore
from discovery.chain.link import LedgerLink
from discovery.chain.roles import PoolRole
from discovery.mailbox.store import Mailbox, MailboxNotifier
from ledger.artifacts import Contract
from ledger.client.pools import PoolContracts
from ledger.devchain import start_chain
from ledger.rpc.connection import connect
from ledger.transactions.pending import TransactionCall
from ledger.transactions.sender import TransactionSender
from protocol.errors import NotFound, Unavailable
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.invites import Invite, Join
from protocol.runtime.clock import Clock, ManualClock, SystemClock
from protocol.wire.invites import SignedInvite
from tests.kit.chain import quickest_kind
from tests.kit.chain_controls import ChainControls
from tests.kit.discovery_pool import UNIT, PoolOnChain, make_pool, roles_of, terms

POOL = 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[PoolOnChain]:
    async with start_chain(quickest_kind()) as chain:
        yield await make_pool(chain)


@asynccontextmanager
async def linked(pool: PoolOnChain, redis: Redis, *, clock: Clock | None = None) -> AsyncIterator[LedgerLink]:
    link = LedgerLink(pool.chain.url, pool.deployment, redis=redis, clock=clock)
    try:
        yield link
    finally:
        await link.aclose()


async def blocked() -> NoReturn:
    """Replaces a connection by one over which no answer arrives."""
    await asyncio.Event().wait()
    raise AssertionError


def mailbox_on(redis: Redis) -> Mailbox:
    return Mailbox(redis, notifier=MailboxNotifier(redis), clock=SystemClock())


async def test_roles_are_read_from_the_ledger(pool: PoolOnChain, redis: Redis) -> None:
    expected = {
        pool.owner.address: {PoolRole.OWNER},
        pool.manager.address: {PoolRole.MANAGER},
        pool.orchestrator.address: {PoolRole.ORCHESTRATOR},
        pool.validator.address: {PoolRole.VALIDATOR},
        pool.key(6).address: set(),
        pool.provider.address: set(),
    }
    async with linked(pool, redis) as link:
        for who, roles in expected.items():
            held = await link.roles(POOL)
            assert {role for role, keys in held.items() if who in keys} == roles
        for unknown in (200, 10**12):
            with pytest.raises(NotFound):
                await link.roles(unknown)


async def test_unknown_pools_cause_at_most_one_pool_count_a_second(
    pool: PoolOnChain, redis: Redis, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, count = [], PoolContracts.count

    async def counting(self: PoolContracts) -> int:
        counts.append(await count(self))
        return counts[-1]

    monkeypatch.setattr(PoolContracts, "count", counting)
    async with linked(pool, redis, clock=clock) as link:
        for seconds, expected in ((0, 1), (0.9, 1), (0.2, 2)):
            await clock.turn(timedelta(seconds=seconds))
            for unknown in range(1000, 1050):
                with pytest.raises(NotFound):
                    await link.roles(unknown)
            assert len(counts) == expected


async def test_events_and_roles_are_read_over_separate_connections(
    pool: PoolOnChain, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked(pool, redis) as link:
        with monkeypatch.context() as patched:
            patched.setattr(link._for_events, "get", blocked)
            assert await asyncio.wait_for(link.roles(POOL), 20)
        facts = FactStore(redis)
        with monkeypatch.context() as patched:
            patched.setattr(link._for_roles, "get", blocked)
            await asyncio.wait_for(link.read(facts, mailbox_on(redis)), 20)
        assert await facts.has_pool(POOL)
        assert await link._for_events.get() is not await link._for_roles.get()


async def test_a_data_uri_that_is_not_utf8_does_not_hide_roles_or_facts(pool: PoolOnChain, redis: Redis) -> None:
    async with pool.ledger(pool.owner) as ledger:
        other = await ledger.pools.create(domain_id=1, roles=roles_of(pool), terms=terms(), data_uri="x")
        web3 = await connect(pool.chain.url, expected_chain_id=pool.chain.chain_id)
        data = keccak(text="setDataUri(uint256,string)")[:4] + encode(["uint256", "bytes"], [other, b"\xff\xfe"])
        async with TransactionSender(web3, pool.owner.account(), chain_id=pool.chain.chain_id) as sender:
            await sender.send(TransactionCall(to=pool.deployment[Contract.COMPUTE_POOLS], data=data))
        await web3.provider.disconnect()
        assert (await ledger.pools.get(other)).data_uri == "\ufffd\ufffd"
    async with linked(pool, redis) as link:
        assert pool.owner.address in (await link.roles(other))[PoolRole.OWNER]
        facts = FactStore(redis)
        await link.read(facts, mailbox_on(redis))
        assert await facts.has_pool(other)


async def test_facts_follow_registration_stake_and_bans(pool: PoolOnChain, redis: Redis) -> None:
    node, facts, mailbox = Key.generate(), FactStore(redis), mailbox_on(redis)

    async def seen(link: LedgerLink) -> tuple[Address | None, int, bool]:
        await link.read(facts, mailbox)
        fact = (await facts.of(POOL, [node.address]))[node.address]
        return fact.provider, fact.stake, fact.banned

    async with (
        linked(pool, redis) as link,
        pool.ledger(pool.provider) as provider,
        pool.ledger(pool.manager) as manager,
    ):
        before = (await provider.stake.of(pool.provider.address)).active
        assert await seen(link) == (None, 0, False)
        assert await facts.has_pool(POOL)
        await pool.register(node, stake=5 * UNIT)
        assert await seen(link) == (pool.provider.address, before + 5 * UNIT, False)
        await provider.stake.unbond(2 * UNIT)
        assert await seen(link) == (pool.provider.address, before + 3 * UNIT, False)
        await manager.pools.ban(POOL, node.address, "a test")
        assert (await seen(link))[2]
        await manager.pools.unban(POOL, node.address)
        assert not (await seen(link))[2]
        await manager.pools.ban_provider(POOL, pool.provider.address, "a test")
        assert (await seen(link))[2]
        await manager.pools.unban_provider(POOL, pool.provider.address)
        assert not (await seen(link))[2]
        await provider.registry.retire(node.address)
        assert await seen(link) == (None, 0, False)


async def test_a_second_instance_resumes_where_the_first_one_stopped(pool: PoolOnChain, redis: Redis) -> None:
    node, facts, mailbox = Key.generate(), FactStore(redis), mailbox_on(redis)
    async with linked(pool, redis) as first:
        await first.read(facts, mailbox)
        async with linked(pool, redis) as second:
            age = await facts.age()
            await second.read(facts, mailbox)  # another instance holds the lease: nothing is read
            assert await facts.age() == age
            await redis.delete("muster:{discovery}:lease:ledger")  # the first instance has ended
            await pool.register(node, stake=UNIT)
            await second.read(facts, mailbox)
            assert (await facts.of(POOL, [node.address]))[node.address].provider == pool.provider.address


async def test_a_reorg_reverts_facts(pool: PoolOnChain, redis: Redis) -> None:
    node, facts, mailbox = Key.generate(), FactStore(redis), mailbox_on(redis)
    async with linked(pool, redis) as link, ChainControls(pool.chain.url) as controls:
        await link.read(facts, mailbox)
        snapshot = await controls.snapshot()
        await pool.register(node, stake=UNIT)
        await link.read(facts, mailbox)
        assert await facts.knows(node.address)
        await controls.revert(snapshot)
        await controls.mine()
        await link.read(facts, mailbox)
        assert not await facts.knows(node.address)


async def test_a_pool_whose_creation_a_reorg_removed_is_unknown_again(pool: PoolOnChain, redis: Redis) -> None:
    facts, mailbox = FactStore(redis), mailbox_on(redis)
    async with (
        linked(pool, redis) as link,
        ChainControls(pool.chain.url) as controls,
        pool.ledger(pool.owner) as ledger,
    ):
        await link.read(facts, mailbox)
        snapshot = await controls.snapshot()
        other = await ledger.pools.create(domain_id=1, roles=roles_of(pool), terms=terms(), data_uri="x")
        await link.read(facts, mailbox)
        assert await facts.has_pool(other)
        await controls.revert(snapshot)
        await controls.mine()
        await link.read(facts, mailbox)
        assert not await facts.has_pool(other)
        assert await facts.has_pool(POOL)


async def test_the_invites_of_a_node_that_has_joined_are_removed(pool: PoolOnChain, redis: Redis) -> None:
    node, facts, mailbox = Key.generate(), FactStore(redis), mailbox_on(redis)
    await pool.register(node, stake=2 * UNIT)
    async with linked(pool, redis) as link, pool.ledger(pool.orchestrator) as ledger:
        expiry = int((await ledger.now() + timedelta(hours=1)).timestamp())
        invite = Invite(
            pool_id=POOL, domain_id=1, node=node.address, nonce=1, expiry=expiry, url="https://pool.example"
        )
        signature = invite.sign(pool.orchestrator, ledger.pools.domain)
        posted = SignedInvite.of(invite, domain=ledger.pools.domain, signature=signature)
        await redis.hset(f"muster:{{discovery}}:node:{node.address}", "expires", str(2**50))
        await redis.zadd(f"muster:{{discovery}}:invites:{node.address}", {posted.model_dump_json(): 2**40})
        await link.read(facts, mailbox)
        assert await mailbox.invites(node.address) == (posted,)
        await _join(pool, node, invite, signature)
        await link.read(facts, mailbox)
        assert await mailbox.invites(node.address) == ()


async def test_an_unreachable_chain_raises_unavailable(redis: Redis, pool: PoolOnChain) -> None:
    link = LedgerLink("http://127.0.0.1:9", pool.deployment, redis=redis)
    with pytest.raises(Unavailable):
        await link.roles(POOL)
    with pytest.raises(Unavailable):
        await link.read(FactStore(redis), mailbox_on(redis))
    await link.aclose()


async def _join(pool: PoolOnChain, node: Key, invite: Invite, signature: bytes) -> None:
    async with pool.ledger(pool.governor) as carrier:
        word = Join(invite_hash=invite.hash).sign(node, carrier.pools.domain)
        await carrier.pools.join(invite, orchestrator_signature=signature, node_signature=word)
