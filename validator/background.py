"""Names, intervals and stall limits of the validator's background loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from protocol.redis.outages import patient
from protocol.runtime.loops import BackgroundLoops
from validator.audit_loops import AuditLoops
from validator.dependencies import Dependencies
from validator.queue_metrics import QueueMetrics

STALLED = timedelta(seconds=60)
"""Time without a successful round of a loop after which the service reports that it is not ready."""
IDLE = timedelta(seconds=1)
"""Pause between two rounds of a loop that finds nothing to do, because items become due by time.

New items wake the judging loops immediately.
"""
GAUGES_EVERY = timedelta(seconds=5)
"""Interval at which the queue's Prometheus gauges are read from Redis."""
NUMERICS_EVERY = timedelta(seconds=5)
"""Interval at which the validator compares its numerics classes with the reported ones."""


def add_loops(
    loops: BackgroundLoops, dependencies: Dependencies, *, audit_loops: AuditLoops, gauges: QueueMetrics
) -> None:
    """Adds all background loops of one validator to the service.

    Args:
        loops: Runner of the service's loops.
        dependencies: Dependencies of the validator.
        audit_loops: Loops of audit epochs and second looks.
        gauges: Prometheus gauges of the queue.
    """
    settings = dependencies.settings
    poll = timedelta(seconds=settings.poll_s)
    loops.add("intake", patient("intake", dependencies.intake.round), every=poll, stalled_after=STALLED)
    for number, wakeup in enumerate(dependencies.wakeups, 1):
        name = f"judging-{number}"
        loops.add(name, patient(name, _judging(loops, dependencies, name)), every=IDLE, woken=wakeup)
    for number, send_queue in enumerate(dependencies.send_queues, 1):
        name = f"verdicts-{number}"
        loops.add(
            name,
            patient(name, send_queue.round),
            every=IDLE,
            stalled_after=STALLED * 5,
            woken=dependencies.verdicts.news,
        )
    loops.add("leases", dependencies.held.renew, every=dependencies.queue.lease / 3, stalled_after=STALLED)
    loops.add("health", lambda: update_health(dependencies), every=IDLE, stalled_after=STALLED * 5)
    if settings.finalise:
        every = timedelta(seconds=settings.finalise_every_s)
        loops.add("finalising", patient("finalising", dependencies.finalising.round), every=every)
    loops.add(
        "epochs", patient("epochs", audit_loops.epochs), every=min(timedelta(seconds=settings.epoch_s) / 10, STALLED)
    )
    loops.add("second-looks", patient("second-looks", audit_loops.verdicts), every=max(poll, IDLE / 2))
    loops.add("juries", patient("juries", dependencies.juries.round), every=IDLE)
    loops.add("numerics", dependencies.numerics_reports.round, every=NUMERICS_EVERY)
    loops.add("gauges", gauges.read, every=GAUGES_EVERY)


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


def _judging(loops: BackgroundLoops, dependencies: Dependencies, name: str) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        await dependencies.judging.round(beat=lambda: loops.beat(name))

    return work
