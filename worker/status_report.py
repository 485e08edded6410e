"""Collects the worker's status for the contributor and its gauges for heartbeats."""

from __future__ import annotations

from collections.abc import Mapping

from protocol import __version__
from worker.delivery.pay_watch import PayWatch
from worker.delivery.queue.store import QueueStore
from worker.dependencies import Dependencies
from worker.machine.hardware import read_load
from worker.situation import Situation, WorkerStatus
from worker.slots.bridge.task_bridge import TaskBridge
from worker.tasks.reconciler import Reconciler

FINISHED = frozenset({"delivered", "given_up", "parked"})
"""Keys of `QueueStore.counts` for items that the queue no longer processes."""


class SelfReport:
    """Collects status and gauges from the worker's components.

    Args:
        dependencies: Settings, clients and clock of the worker.
        situation: Status that the loops of the daemon update.
        reconciler: Reconciler, which knows the state of the task.
        bridge: Bridge, which knows the task's gauges and warnings about its leases.
        queue: The delivery queue.
        pay: Payment watch, which knows whether leasing has stopped because work was not paid.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        *,
        situation: Situation,
        reconciler: Reconciler,
        bridge: TaskBridge,
        queue: QueueStore,
        pay: PayWatch,
    ) -> None:
        self._dependencies = dependencies
        self._situation = situation
        self._reconciler = reconciler
        self._bridge = bridge
        self._queue = queue
        self._pay = pay

    def gauges(self) -> Mapping[str, float]:
        """Returns machine load, queue lengths and the task's own gauges, by name."""
        counts = self._queue.counts()
        waiting = sum(count for stage, count in counts.items() if stage not in FINISHED)
        queue = {"queue.waiting": float(waiting), "queue.parked": float(counts["parked"])}
        task = {f"task.{name}": value for name, value in self._bridge.metrics.items()}
        return {**read_load(self._dependencies.state.root), **queue, **task}

    def status(self) -> WorkerStatus:
        """Returns the worker's status."""
        situation, task, dependencies = self._situation, self._reconciler.task, self._dependencies
        return WorkerStatus(
            node=dependencies.key.address,
            pool_id=dependencies.settings.pool_id,
            version=__version__,
            phase=situation.phase,
            detail=situation.detail,
            node_state=situation.node_state,
            orchestrator=situation.orchestrator,
            last_answer_ms=situation.last_answer_ms,
            interval_s=situation.interval_s,
            silent_because=situation.silent_because,
            search=situation.search,
            moved=situation.moved,
            clock_skew_s=situation.clock_skew_s,
            discovery=dict(situation.discovery),
            notices=list(situation.notices),
            warnings=[*situation.warnings, *self._bridge.warnings],
            stopped=self._pay.stopped,
            draining=situation.draining,
            runtime=dependencies.runtime.kind,
            runtime_error=self._reconciler.runtime_error,
            task=task.task_name if task is not None else "",
            task_id=task.task_id if task is not None else "",
            assignment=self._reconciler.report(),
            metrics=dict(self.gauges()),
            refused=self._reconciler.refused,
            queue=self._queue.counts(),
            given_up=[f"{item.name}: {item.given_up}" for item in self._queue.given_up()],
            parked=[f"{item.id} {item.name}: {item.parked}" for item in self._queue.items() if item.parked],
        )
