"""Builds the validator's background loops, and adds them with their names, intervals and stall limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import CollectorRegistry

from ledger.metrics import CHAIN_METRICS_EVERY, ChainMetrics
from protocol.redis.outages import patient
from protocol.runtime.loops import BackgroundLoops
from validator.chain.checkpoints import CheckpointLookup
from validator.dependencies import Dependencies
from validator.loops.audit import AuditLoops
from validator.loops.disputes import LookResults
from validator.loops.examining import FileExamination
from validator.loops.finalising import Finalising
from validator.loops.intake import LedgerIntake
from validator.loops.judging import Judging
from validator.loops.juries import Juries
from validator.loops.leased_items import LeasedItems
from validator.loops.numerics import NumericsReports
from validator.loops.queue_metrics import QueueMetrics
from validator.loops.verdicts import PendingVerdict, PendingVerdicts, VerdictSender
from validator.loops.work_order import WorkOrder
from validator.queue.queue_plan import FOLLOWED
from validator.store.copies import SeenOutputs
from validator.store.near_ties import NearTieBudgets
from validator.verdicts.row_sampling import LOOK_AGAIN, RowSampling

STALLED = timedelta(seconds=60)
"""If a loop has no successful round for this time, the service reports that it is not ready."""
IDLE = timedelta(seconds=1)
"""Pause between two rounds of a loop that finds nothing to do, because items become due by time.

New items wake the judging loops immediately.
"""
GAUGES_EVERY = timedelta(seconds=5)
"""Interval at which the queue's Prometheus gauges are read from Redis."""
NUMERICS_EVERY = timedelta(seconds=5)
"""Interval at which the validator compares its numerics classes with those that it last reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorLoops:
    """The background loops of one validator process."""

    intake: LedgerIntake
    judging: Judging
    verdicts: PendingVerdicts
    """Verdicts that wait for a transaction."""
    verdict_senders: Sequence[VerdictSender]
    finalising: Finalising
    juries: Juries
    audit: AuditLoops
    numerics: NumericsReports
    queue_metrics: QueueMetrics
    chain_metrics: ChainMetrics

    async def aclose(self) -> None:
        """Releases the leader leases, so that other processes on this Redis take over immediately.

        Raises:
            StoreUnavailable: Redis is down, so the leases are not released; they expire by themselves.
        """
        await self.intake.aclose()
        await self.finalising.aclose()


def build_loops(dependencies: Dependencies, *, registry: CollectorRegistry) -> ValidatorLoops:
    """Builds the loops of one validator, without any I/O.

    Args:
        dependencies: Dependencies of the validator.
        registry: Registry of the service, for the gauges of the queue.
    """
    juries = Juries(dependencies.key.address, chain=dependencies.chain, clock=dependencies.clock)
    verdicts = PendingVerdicts(waiting=dependencies.settings.verdicts_waiting)
    return ValidatorLoops(
        intake=_intake(dependencies),
        judging=_judging(dependencies, verdicts=verdicts, juries=juries),
        verdicts=verdicts,
        verdict_senders=tuple(
            _verdict_sender(dependencies, verdicts) for _ in range(dependencies.settings.verdict_transactions)
        ),
        finalising=_finalising(dependencies),
        juries=juries,
        audit=AuditLoops(dependencies, juries=juries),
        numerics=NumericsReports(
            dependencies.members, orchestrator=dependencies.remote.writer, clock=dependencies.clock
        ),
        queue_metrics=QueueMetrics(
            registry,
            queue=dependencies.queue,
            deadlines=dependencies.deadlines,
            progress=dependencies.progress,
            health=dependencies.health,
            members=dependencies.members,
        ),
        chain_metrics=ChainMetrics(registry, clock=dependencies.clock),
    )


def add_loops(loops: BackgroundLoops, dependencies: Dependencies, *, built: ValidatorLoops) -> None:
    """Adds all background loops of one validator to the service.

    Args:
        loops: Runner of the service's loops.
        dependencies: Dependencies of the validator.
        built: The loops to run.
    """
    settings = dependencies.settings
    poll = timedelta(seconds=settings.poll_s)
    loops.add("intake", patient("intake", built.intake.round), every=poll, stalled_after=STALLED)
    for number, wakeup in enumerate(dependencies.wakeups, 1):
        name = f"judging-{number}"
        loops.add(name, patient(name, _judging_round(loops, built.judging, name)), every=IDLE, woken=wakeup)
    for number, verdict_sender in enumerate(built.verdict_senders, 1):
        name = f"verdicts-{number}"
        loops.add(
            name, patient(name, verdict_sender.round), every=IDLE, stalled_after=STALLED * 5, woken=built.verdicts.news
        )
    loops.add("leases", dependencies.held.renew, every=dependencies.queue.lease / 3, stalled_after=STALLED)
    loops.add("health", lambda: update_health(dependencies), every=IDLE, stalled_after=STALLED * 5)
    if settings.finalise:
        every = timedelta(seconds=settings.finalise_every_s)
        loops.add("finalising", patient("finalising", built.finalising.round), every=every)
    loops.add(
        "epochs", patient("epochs", built.audit.epochs), every=min(timedelta(seconds=settings.epoch_s) / 10, STALLED)
    )
    loops.add("second-looks", patient("second-looks", built.audit.verdicts), every=max(poll, IDLE / 2))
    loops.add("juries", patient("juries", built.juries.round), every=IDLE)
    loops.add("numerics", built.numerics.round, every=NUMERICS_EVERY)
    loops.add("gauges", built.queue_metrics.read, every=GAUGES_EVERY)

    async def read_chain() -> None:
        accounts = {"validator": dependencies.key.address}
        await built.chain_metrics.read(await dependencies.chain.ledger(), accounts)

    loops.add("chain-metrics", patient("chain-metrics", read_chain), every=CHAIN_METRICS_EVERY)


async def update_health(dependencies: Dependencies) -> None:
    """Runs a due self-test and announces the result to the other processes on this Redis.

    If this validator has been unhealthy for longer than an item's lease and another process is healthy, all leased
    items go back to the queue.

    Raises:
        StoreUnavailable: Redis is down.
    """
    was_well = dependencies.health.well
    await dependencies.health.round()
    if dependencies.health.well and not was_well:
        dependencies.notify()
    stuck = not dependencies.health.well and dependencies.health.since > dependencies.queue.lease
    if stuck and len(dependencies.held) and await dependencies.members.others_may_judge():
        await dependencies.held.give_back()


def _judging_round(loops: BackgroundLoops, judging: Judging, name: str) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        await judging.round(beat=lambda: loops.beat(name))

    return work


def _intake(dependencies: Dependencies) -> LedgerIntake:
    settings = dependencies.settings
    order = WorkOrder(
        dependencies.chain,
        known=dependencies.known,
        members=dependencies.members,
        takeover=timedelta(seconds=settings.takeover_s),
        awake_within=timedelta(seconds=settings.awake_s),
    )
    return LedgerIntake(
        dependencies.chain,
        following=dependencies.follower("submissions", FOLLOWED),
        queue=dependencies.queue,
        deadlines=dependencies.deadlines,
        order=order,
        lease=dependencies.leader_lease("intake"),
        notify=dependencies.notify,
        progress=dependencies.progress,
    )


def _judging(dependencies: Dependencies, *, verdicts: PendingVerdicts, juries: Juries) -> Judging:
    me, chain, settings = dependencies.key.address, dependencies.chain, dependencies.settings
    items = LeasedItems(
        me,
        chain=chain,
        queue=dependencies.queue,
        held=dependencies.held,
        health=dependencies.health,
        retry_policy=settings.retry_policy(),
        metrics=dependencies.metrics,
    )
    return Judging(
        me,
        chain=chain,
        items=items,
        examination=_examination(dependencies),
        verdicts=verdicts,
        looks=LookResults(chain.ledger, read=dependencies.files.audit, pool_id=settings.pool_id),
        juries=juries,
        clock=dependencies.clock,
    )


def _examination(dependencies: Dependencies) -> FileExamination:
    settings, chain, clock = dependencies.settings, dependencies.chain, dependencies.clock
    redis, keys = dependencies.redis, dependencies.keys
    versions = CheckpointLookup(chain, orchestrator=dependencies.remote.reader, relays=settings.relays, clock=clock)
    drawing = RowSampling(
        chain,
        records=dependencies.records,
        policy=settings.rate_policy(),
        clock=clock,
        every=min(LOOK_AGAIN, timedelta(seconds=settings.poll_s)),
    )
    return FileExamination(
        chain=chain,
        files=dependencies.files,
        versions=versions,
        drawing=drawing,
        examiner=dependencies.examiner,
        seen=SeenOutputs(redis, keys=keys),
        near_ties=NearTieBudgets(redis, keys=keys, validator=dependencies.key.address),
        metrics=dependencies.metrics,
    )


def _verdict_sender(dependencies: Dependencies, verdicts: PendingVerdicts) -> VerdictSender:
    metrics, counts = dependencies.metrics, dependencies.counts

    async def on_recorded(recorded: Sequence[PendingVerdict]) -> None:
        for each in recorded:
            metrics.given(each.item, each.staged.outcome, each.staged.reason)
        await counts.add(Counter((each.staged.outcome, each.staged.reason) for each in recorded))

    return VerdictSender(
        verdicts,
        chain=dependencies.chain,
        queue=dependencies.queue,
        held=dependencies.held,
        batch=dependencies.settings.verdicts_per_transaction,
        on_recorded=on_recorded,
        metrics=metrics,
        clock=dependencies.clock,
    )


def _finalising(dependencies: Dependencies) -> Finalising:
    return Finalising(
        dependencies.chain,
        deadlines=dependencies.deadlines,
        lease=dependencies.leader_lease("finalising"),
        batch=dependencies.settings.verdicts_per_transaction,
        lag=timedelta(seconds=dependencies.settings.finalise_lag_s),
    )
