"""Dependencies shared by the routes and loops of one validator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Protocol

from fastapi import Request
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from ledger.artifacts import Contract
from ledger.client.event_follower import EventFollower
from ledger.events.types import LedgerEvent
from protocol.clients import NodeClient, OrchestratorClient
from protocol.http.object_transfer import ObjectTransfer
from protocol.identity.keys import Key
from protocol.redis.connection import RedisKeys
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock
from validator.chain.connection import PoolChain
from validator.domain.progress import LoopProgress
from validator.examination.interface import Examiner
from validator.files import WorkFiles
from validator.health import Health
from validator.metrics import ValidatorMetrics
from validator.queue.leases import HeldItems
from validator.queue.store import WorkQueue
from validator.self_test import SelfTest
from validator.settings import ValidatorSettings
from validator.store.counts import VerdictCounts
from validator.store.deadlines import Deadlines
from validator.store.keys import keys_of
from validator.store.members import Members, no_numerics, place_of
from validator.store.records import NodeRecords
from validator.store.validators import KnownValidators


class OpenableExaminer(Examiner, Protocol):
    """An examiner whose processes run while its async context is entered."""

    async def __aenter__(self) -> object:
        """Starts the examiner processes."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> object:
        """Ends the examiner processes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """HTTP clients of the pool's orchestrator and object store."""

    reader: OrchestratorClient
    """Reads runs, submissions and download links."""
    writer: NodeClient
    """Requests upload URLs and reports numerics classes."""
    transfer: ObjectTransfer
    """Downloads and uploads objects by presigned URLs."""

    async def aclose(self) -> None:
        """Closes the HTTP connections of all three clients."""
        await self.reader.aclose()
        await self.writer.aclose()
        await self.transfer.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """All objects that the routes and loops of one validator share."""

    settings: ValidatorSettings
    key: Key
    clock: Clock
    redis: Redis
    keys: RedisKeys
    chain: PoolChain
    remote: Remote
    examiner: OpenableExaminer
    queue: WorkQueue
    held: HeldItems
    files: WorkFiles
    records: NodeRecords
    known: KnownValidators
    members: Members
    health: Health
    counts: VerdictCounts
    deadlines: Deadlines
    metrics: ValidatorMetrics
    progress: LoopProgress
    """Position of the loops in the ledger's events and counts of their actions, for the status and the metrics."""
    wakeups: Sequence[asyncio.Event]
    """One event for each judging loop; `notify` sets all of them when the queue may have an item to take."""

    def notify(self) -> None:
        """Wakes all judging loops, because the queue may have an item that this process can take now."""
        for wakeup in self.wakeups:
            wakeup.set()

    def leader_lease(self, name: str) -> LeaderLease:
        """Returns a lock by which only one of the processes on this Redis does a background task at a time.

        Args:
            name: Name of the task.
        """
        lifetime = timedelta(seconds=self.settings.lease_s)
        return LeaderLease(ScriptRunner(self.redis, keys=self.keys), name, lifetime=lifetime)

    def follower(self, name: str, kinds: Mapping[Contract, tuple[type[LedgerEvent], ...]]) -> EventFollower:
        """Returns a follower of ledger events, which stores its position in Redis under the given name.

        Args:
            name: Name of the position in Redis.
            kinds: Event types to read, by contract.
        """
        deployment = self.chain.deployment
        return EventFollower(
            name,
            deployment,
            kinds=[kind for each in kinds.values() for kind in each],
            contracts=[deployment[contract] for contract in kinds],
            redis=self.redis,
            keys=self.keys,
            confirmations=self.settings.confirmations,
            clock=self.clock,
        )


def build_dependencies(
    settings: ValidatorSettings,
    *,
    redis: Redis,
    chain: PoolChain,
    remote: Remote,
    examiner: OpenableExaminer,
    key: Key,
    clock: Clock,
    registry: CollectorRegistry,
    numerics: Callable[[], Sequence[str]] = no_numerics,
) -> Dependencies:
    """Builds the shared objects of a validator, without any I/O.

    Args:
        settings: Settings of the validator.
        redis: Redis client.
        chain: Chain client of the validator's pool.
        remote: HTTP clients of the orchestrator.
        examiner: Examiner of rollout files.
        key: The validator's key.
        clock: Clock of loops, caches and requests.
        registry: Prometheus registry of the service.
        numerics: Returns the numerics classes that the examiner can verify. It is called once a second.
    """
    keys, me = keys_of(settings.pool_id), key.address
    members = Members(redis, keys=keys, validator=me, place=place_of(settings.directory), numerics=numerics)
    queue = WorkQueue(
        redis,
        keys=keys,
        clock=clock,
        lease=timedelta(seconds=settings.lease_s),
        member=members.me,
        retry_policy=settings.retry_policy(),
    )
    files = WorkFiles(
        pool_id=settings.pool_id,
        reader=remote.reader,
        writer=remote.writer,
        transfer=remote.transfer,
        directory=settings.directory / "work",
        most_bytes=settings.file_most_bytes,
        reserve_bytes=settings.reserve_bytes,
    )
    test = SelfTest(
        me,
        chain=chain,
        orchestrator=remote.reader,
        files=files,
        examiner=examiner,
        policies=settings.policies,
    )
    return Dependencies(
        settings=settings,
        key=key,
        clock=clock,
        redis=redis,
        keys=keys,
        chain=chain,
        remote=remote,
        examiner=examiner,
        queue=queue,
        held=HeldItems(queue),
        files=files,
        records=NodeRecords(redis, keys=keys, validator=me),
        known=KnownValidators(redis, keys=keys),
        members=members,
        health=Health(test, members=members, clock=clock),
        counts=VerdictCounts(redis, keys=keys),
        deadlines=Deadlines(redis, keys=keys),
        metrics=ValidatorMetrics(registry, clock=clock),
        progress=LoopProgress(),
        wakeups=[asyncio.Event() for _ in range(settings.pieces())],
    )


def dependencies_of(request: Request) -> Dependencies:
    """Returns the dependencies of the application that serves this request.

    Raises:
        TypeError: The application was not built by `build_validator`.
    """
    dependencies = request.app.state.dependencies
    if not isinstance(dependencies, Dependencies):
        raise TypeError("app.state.dependencies must be Dependencies")
    return dependencies
