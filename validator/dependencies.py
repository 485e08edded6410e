"""Dependencies shared by the routes and loops of one validator."""

from __future__ import annotations

import asyncio
from collections import Counter
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
from validator.chain.checkpoints import CheckpointLookup
from validator.chain.connection import PoolChain
from validator.examination.interface import Examiner
from validator.files import WorkFiles
from validator.health import Health
from validator.loops.disputes import LookResults
from validator.loops.finalising import Finalising
from validator.loops.intake import LedgerIntake
from validator.loops.judging import Judging
from validator.loops.juries import Juries
from validator.loops.numerics import NumericsReports
from validator.loops.verdicts import PendingVerdict, SendQueue, Verdicts
from validator.metrics import ValidatorMetrics
from validator.queue.leases import HeldItems
from validator.queue.queue_plan import FOLLOWED
from validator.queue.store import WorkQueue
from validator.self_test import SelfTest
from validator.settings import ValidatorSettings
from validator.store.copies import SeenOutputs
from validator.store.counts import VerdictCounts
from validator.store.deadlines import Deadlines
from validator.store.keys import keys_of
from validator.store.members import Members, no_numerics, place_of
from validator.store.near_ties import NearTieBudgets
from validator.store.records import NodeRecords
from validator.store.validators import KnownValidators
from validator.verdicts.row_sampling import LOOK_AGAIN, RowSampling


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
    verdicts: Verdicts
    send_queues: Sequence[SendQueue]
    judging: Judging
    juries: Juries
    intake: LedgerIntake
    finalising: Finalising
    numerics_reports: NumericsReports
    wakeups: Sequence[asyncio.Event]
    """One event for each judging loop; an event is set when the queue may have an item to take."""

    def notify(self) -> None:
        """Wakes all judging loops, because the queue may have an item that this process can take now."""
        _notify(self.wakeups)


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
    """Builds all objects of a validator, without any I/O.

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
    lease = timedelta(seconds=settings.lease_s)
    members = Members(redis, keys=keys, validator=me, place=place_of(settings.directory), numerics=numerics)
    retry_policy = settings.retry_policy()
    queue = WorkQueue(redis, keys=keys, clock=clock, lease=lease, member=members.me, retry_policy=retry_policy)
    held = HeldItems(queue)
    metrics = ValidatorMetrics(registry, clock=clock)
    known = KnownValidators(redis, keys=keys)
    deadlines = Deadlines(redis, keys=keys)
    records = NodeRecords(redis, keys=keys, validator=me)
    wakeups = [asyncio.Event() for _ in range(settings.pieces())]
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
    health = Health(test, members=members, clock=clock)
    counts = VerdictCounts(redis, keys=keys)

    async def on_recorded(recorded: Sequence[PendingVerdict]) -> None:
        for each in recorded:
            metrics.given(each.item, each.staged.outcome, each.staged.reason)
        await counts.add(Counter((each.staged.outcome, each.staged.reason) for each in recorded))

    juries = Juries(me, chain=chain, clock=clock)
    verdicts = Verdicts(waiting=settings.verdicts_waiting)
    send_queues = tuple(
        SendQueue(
            verdicts,
            chain=chain,
            queue=queue,
            held=held,
            batch=settings.verdicts_per_transaction,
            on_recorded=on_recorded,
            metrics=metrics,
            clock=clock,
        )
        for _ in range(settings.verdict_transactions)
    )
    judging = Judging(
        me,
        chain=chain,
        queue=queue,
        held=held,
        health=health,
        files=files,
        versions=CheckpointLookup(chain, orchestrator=remote.reader, relays=settings.relays, clock=clock),
        drawing=RowSampling(
            chain,
            records=records,
            policy=settings.rate_policy(),
            clock=clock,
            every=min(LOOK_AGAIN, timedelta(seconds=settings.poll_s)),
        ),
        examiner=examiner,
        seen=SeenOutputs(redis, keys=keys),
        near_ties=NearTieBudgets(redis, keys=keys, validator=me),
        verdicts=verdicts,
        looks=LookResults(chain.ledger, read=files.audit, pool_id=settings.pool_id),
        juries=juries,
        retry_policy=retry_policy,
        metrics=metrics,
        clock=clock,
    )
    intake = LedgerIntake(
        me,
        chain=chain,
        following=following_of("submissions", FOLLOWED, settings=settings, chain=chain, redis=redis, clock=clock),
        queue=queue,
        deadlines=deadlines,
        known=known,
        members=members,
        lease=LeaderLease(ScriptRunner(redis, keys=keys), "intake", lifetime=lease),
        takeover=timedelta(seconds=settings.takeover_s),
        awake_within=timedelta(seconds=settings.awake_s),
        notify=lambda: _notify(wakeups),
        clock=clock,
    )
    finalising = Finalising(
        chain,
        deadlines=deadlines,
        lease=LeaderLease(ScriptRunner(redis, keys=keys), "finalising", lifetime=lease),
        batch=settings.verdicts_per_transaction,
        lag=timedelta(seconds=settings.finalise_lag_s),
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
        held=held,
        files=files,
        records=records,
        known=known,
        members=members,
        health=health,
        counts=counts,
        deadlines=deadlines,
        metrics=metrics,
        verdicts=verdicts,
        send_queues=send_queues,
        judging=judging,
        juries=juries,
        intake=intake,
        finalising=finalising,
        numerics_reports=NumericsReports(members, orchestrator=remote.writer, clock=clock),
        wakeups=wakeups,
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


def following_of(
    name: str,
    kinds: Mapping[Contract, tuple[type[LedgerEvent], ...]],
    *,
    settings: ValidatorSettings,
    chain: PoolChain,
    redis: Redis,
    clock: Clock,
) -> EventFollower:
    """Returns a follower of ledger events, which stores its position in Redis under its own name.

    Args:
        name: Name of the position in Redis.
        kinds: Event types to read, by contract.
        settings: Settings of the validator.
        chain: Chain client, for the contracts' addresses.
        redis: Redis client.
        clock: Clock of the follower.
    """
    return EventFollower(
        name,
        chain.deployment,
        kinds=[kind for each in kinds.values() for kind in each],
        contracts=[chain.deployment[contract] for contract in kinds],
        redis=redis,
        keys=keys_of(settings.pool_id),
        confirmations=settings.confirmations,
        clock=clock,
    )


def _notify(wakeups: Sequence[asyncio.Event]) -> None:
    for wakeup in wakeups:
        wakeup.set()
