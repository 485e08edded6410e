"""Measures the cost of pulling the registrations of a discovery service's peer.

    python -m benchmarks.federation [NODES]

Claim: a round that brings 10,000 new registrations takes a few CPU seconds, and a round that brings none takes less.
Real Redis with its append-only file, real signatures, one process: the times include the peer's work.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import redis as sync_redis
from prometheus_client import CollectorRegistry

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import node_keys, redis_server
from benchmarks.waiting_nodes import POOL, POOLS, REGISTRATION, QuietLedger
from discovery.app import build_discovery
from discovery.chain.ledger_cache import FactChanges, FactStore
from discovery.directory import NodeDirectory
from discovery.federation.intake import StatementIntake
from discovery.federation.puller import LEASE_LIFETIME, ONE_ATTEMPT, PeerPuller, refusals_on
from discovery.settings import DiscoverySettings
from discovery.store.record_store import KEYS
from protocol.clients import DiscoveryClient
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import sign_request
from protocol.redis.connection import connect_redis
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import SystemClock
from protocol.runtime.logs import configure_logs
from protocol.wire.federation import NodeStatement, node_target
from protocol.wire.nodes import Registration

HERE, PEER = Key(b"\x31" * 32), Key(b"\x32" * 32)
PROVIDER = Key(b"\x33" * 32).address
LIFE = timedelta(days=1)
BATCH = 500


def main(nodes: int = 10_000) -> None:
    """Measures and prints."""
    with redis_server() as url:
        asyncio.run(measure(url, node_keys(nodes)))


async def measure(url: str, keys: list[Key]) -> None:
    """Fills the peer, and pulls three times: everything new, nothing new, everything refreshed."""
    clock = SystemClock()
    settings = DiscoverySettings.load(
        flags={
            "deployment": "unused.json",
            "peers": [f"http://127.0.0.1:1#{HERE.address}"],
            "record_seconds": LIFE.total_seconds() / 2,
            "requests_per_second": 100_000,
            "ip_requests_per_second": 100_000,
        }
    )
    peer = build_discovery(
        settings, key=PEER, pools=POOLS, redis=connect_redis(f"{url}?db=1"), ledger=QuietLedger(), clock=clock
    )
    alone = settings.model_copy(update={"peers": ()})
    redis = connect_redis(url)
    own = build_discovery(alone, key=HERE, pools=POOLS, redis=redis, ledger=QuietLedger(), clock=clock)
    client = DiscoveryClient(
        f"http://127.0.0.1#{PEER.address}",
        key=HERE,
        backoff=ONE_ATTEMPT,
        transport=httpx.ASGITransport(app=peer, raise_app_exceptions=True),
    )
    directory: NodeDirectory = own.state.directory
    puller = PeerPuller(
        client,
        StatementIntake(directory, audiences=(HERE.address, PEER.address), source="peer", life=LIFE / 2, clock=clock),
        own=HERE.address,
        pools=POOLS,
        lease=LeaderLease(ScriptRunner(redis, keys=KEYS), "bench", lifetime=LEASE_LIFETIME),
        first_pause=timedelta(seconds=1),
        refusals=refusals_on(CollectorRegistry()),
        clock=clock,
    )
    addresses = [key.address for key in keys]
    for app in (own, peer):
        await learn(app.state.directory.facts, addresses)
    for what in ("all new", "nothing new", "all refreshed"):
        if what != "nothing new":
            await fill(peer.state.directory, keys)
        with measured(f"{len(keys):,} registrations, {what}"):
            await puller.round()
        if await directory.records.count() != len(keys):
            raise SystemExit(f"{await directory.records.count()} of {len(keys)} registrations arrived")
    with sync_redis.from_url(url) as server:
        print(f"Redis, both databases: {server.info('memory')['used_memory'] / (1 << 20):,.0f} MiB")
    await client.aclose()


async def learn(facts: FactStore, nodes: list[Address]) -> None:
    """Makes the pool and the nodes known on the ledger."""
    changes = FactChanges(pools={POOL: True}, providers=dict.fromkeys(nodes, PROVIDER))
    await facts.apply(changes, as_of_ms=int(time.time() * 1000))


async def fill(directory: NodeDirectory, keys: list[Key]) -> None:
    """Stores a registration of each node, signed now, at the peer."""
    parsed = Registration.model_validate_json(REGISTRATION)
    for start in range(0, len(keys), BATCH):
        batch = [(statement(key), parsed) for key in keys[start : start + BATCH]]
        known = frozenset(key.address for key in keys)
        await directory.records.merge(batch, [], on_ledger=known, source="nodes")


def statement(key: Key) -> NodeStatement:
    """Returns a node's registration, signed for the peer."""
    stamp = sign_request(
        key,
        audience=PEER.address,
        method="PUT",
        target=node_target(key.address),
        body=REGISTRATION,
        at=datetime.now(UTC),
    )
    return NodeStatement(
        node=key.address,
        audience=PEER.address,
        timestamp_ms=stamp.timestamp_ms,
        nonce=stamp.nonce,
        signature="0x" + stamp.signature.hex(),
        body=REGISTRATION.decode(),
    )


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Prints the time that the context took."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    print(f"{what}: {time.perf_counter() - wall:.1f} s, {time.process_time() - cpu:.1f} s of CPU", flush=True)


if __name__ == "__main__":
    end_in_order()
    configure_logs(level="WARNING")
    main(*map(int, sys.argv[1:]))
