"""Prometheus gauges of the work queue, read from Redis, and of this process's health."""

from __future__ import annotations

from dataclasses import asdict

from prometheus_client import CollectorRegistry, Gauge

from validator.domain.progress import LoopProgress
from validator.health import Health
from validator.queue.store import WorkQueue
from validator.store.deadlines import Deadlines
from validator.store.members import Members


class QueueMetrics:
    """Prometheus gauges of one validator process.

    Args:
        registry: Registry of the service.
        queue: The work queue.
        deadlines: Store of work that is not final yet.
        progress: Position in the ledger's events, and numbers of second looks.
        health: Health of this process.
        members: Validator processes on this Redis; it knows the numerics classes of this process.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        queue: WorkQueue,
        deadlines: Deadlines,
        progress: LoopProgress,
        health: Health,
        members: Members,
    ) -> None:
        self._queue = queue
        self._deadlines = deadlines
        self._progress = progress
        self._health = health
        self._members = members
        self._well = Gauge("muster_validator_well", "1 if this validator takes work, else 0", registry=registry)
        self._unwell_for = Gauge(
            "muster_validator_unwell_seconds",
            "Seconds for which this validator has taken no work, by error code",
            ("code",),
            registry=registry,
        )
        self._numerics = Gauge(
            "muster_validator_numerics",
            "1 for each numerics class that this validator process can verify",
            ("numerics",),
            registry=registry,
        )
        self._lengths = Gauge("muster_validator_queue", "Items in the queue by stage", ("stage",), registry=registry)
        self._ages = Gauge(
            "muster_validator_queue_oldest_seconds",
            "Time since the oldest item of a stage was added to the queue; 0 if there is none",
            ("stage",),
            registry=registry,
        )
        self._behind = Gauge(
            "muster_validator_blocks_behind", "Blocks of which the events are not read yet", registry=registry
        )
        self._looked = Gauge(
            "muster_validator_looks",
            "Second looks and disputes queued since the start, and own verdicts that became doubtful, by reason",
            ("why",),
            registry=registry,
        )

    async def read(self) -> None:
        """Updates all gauges.

        Gauges of this process are updated first, because they do not need Redis and must be right while Redis is down.

        Raises:
            StoreUnavailable: Redis is down.
        """
        self._well.set(int(self._health.well))
        self._unwell_for.clear()
        if not self._health.well:
            code = self._health.condition.code or self._health.condition.state.value
            self._unwell_for.labels(code).set(self._health.since.total_seconds())
        self._numerics.clear()  # classes that have failed since
        for name in self._members.own_numerics():
            self._numerics.labels(name).set(1)
        lengths = await self._queue.lengths()
        for stage in ("waiting", "ready", "in_hand", "parked"):
            self._lengths.labels(stage.replace("_", "-")).set(getattr(lengths, stage))
        for stage, age in (await self._queue.ages()).items():
            self._ages.labels(stage).set(age.total_seconds())
        self._lengths.labels("not-final").set(await self._deadlines.count())
        if self._progress.read_to is not None:
            upto, head = self._progress.read_to
            self._behind.set(max(0, head + 1 - upto))
        for why, count in asdict(self._progress.looks).items():
            self._looked.labels(why.replace("_", "-")).set(count)
