"""Background loops: expiry of records, wake-up of long polls, reading of the ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from discovery.directory import NodeDirectory
from discovery.federation.forwarding import InviteForwarder
from discovery.federation.puller import PeerPuller
from discovery.mailbox.polls import WaitingPolls
from discovery.mailbox.store import MailboxNotifier
from protocol.errors import Unavailable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.redis.connection import StoreUnavailable
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.loops import BackgroundLoops

PRUNE_EVERY = timedelta(seconds=5)
"""Pause between two deletions of expired records."""
PRUNED_AT_ONCE = 500
"""Maximum number of records that one call of the script deletes, because Redis serves no other client meanwhile."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryGauges:
    """Prometheus gauges of the directory."""

    records: Gauge
    facts_age: Gauge
    federated_records: Gauge
    federated_bytes: Gauge

    @classmethod
    def on(cls, registry: CollectorRegistry, *, polls: WaitingPolls) -> DirectoryGauges:
        """Registers the gauges and returns them."""
        waiting = Gauge("muster_discovery_polls", "Long polls that are waiting now", registry=registry)
        waiting.set_function(lambda: len(polls))
        return cls(
            Gauge("muster_discovery_records", "Nodes that are registered now", registry=registry),
            Gauge("muster_discovery_facts_age_seconds", "Age of the ledger facts", registry=registry),
            Gauge(
                "muster_discovery_federated_records",
                "Records and marks of removals that a peer passed on",
                ("peer",),
                registry=registry,
            ),
            Gauge(
                "muster_discovery_federated_bytes",
                "Bytes of the records and marks of removals that a peer passed on",
                ("peer",),
                registry=registry,
            ),
        )


def add_loops(
    loops: BackgroundLoops,
    *,
    directory: NodeDirectory,
    notifier: MailboxNotifier,
    gauges: DirectoryGauges,
    read_ledger: Callable[[], Awaitable[None]],
    redis_place: str,
    poll: timedelta,
    clock: Clock,
) -> None:
    """Adds the service's loops.

    Every instance of the service runs all of them; they are safe to run concurrently.
    """

    async def expire() -> None:
        while await directory.records.prune(PRUNED_AT_ONCE) == PRUNED_AT_ONCE:
            pass
        gauges.records.set(await directory.records.count())
        for peer, held in (await directory.records.federated()).items():
            gauges.federated_records.labels(peer).set(held.records)
            gauges.federated_bytes.labels(peer).set(held.bytes)
        age = await directory.facts.age()
        gauges.facts_age.set(max(0.0, (unix_ms(clock.now()) - age.as_of_ms) / 1000))

    loops.add("expiry", expire, every=PRUNE_EVERY)
    loops.add("doorbell", notifier.listen)
    loops.add("ledger", patient(read_ledger, redis_place=redis_place), every=poll)


def add_peer_loops(
    loops: BackgroundLoops,
    *,
    pullers: Sequence[PeerPuller],
    forwarder: InviteForwarder,
    peers: Sequence[Address],
    redis_place: str,
    every: timedelta,
) -> None:
    """Adds two loops for each peer, so that a slow peer delays no other one: pulling, and passing invites on.

    Args:
        loops: Loops of the service.
        pullers: One for each peer.
        forwarder: Holds the invites that wait for peers.
        peers: Addresses of the peers to which invites are passed on.
        redis_place: Redis, as it is named in logs.
        every: Pause between two rounds of pulling.
    """
    for number, puller in enumerate(pullers):
        loops.add(f"peer-{number}", patient(puller.round, redis_place=redis_place), every=every)
    for number, peer in enumerate(peers):
        loops.add(f"peer-{number}-invites", partial(forwarder.send, peer))


def patient(work: Callable[[], Awaitable[None]], *, redis_place: str) -> Callable[[], Awaitable[None]]:
    """Wraps `work`, so that an outage of the chain or of Redis does not crash the loop and is logged only once.

    While the chain is down, the service stays ready and serves older facts with their age.
    """
    down = False

    async def attempt() -> None:
        nonlocal down
        try:
            await work()
        except StoreUnavailable as error:
            if not down:
                _log.warning(
                    "redis-unavailable", redis=redis_place, error=error.detail, hint="start Redis, or set redis_url"
                )
            down = True
        except Unavailable as error:
            if not down:
                _log.warning("ledger-unavailable", error=error.detail, hint="records are served with older facts")
            down = True
        else:
            if down:
                _log.info("ledger-is-read-again")
            down = False

    return attempt
