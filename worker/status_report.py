"""How a worker is, in its own words: for its operator on this machine, and in figures for the pool."""

from __future__ import annotations

from collections.abc import Mapping

from protocol import __version__
from worker.delivery.pay_watch import PayWatch
from worker.delivery.queue.store import QueueStore
from worker.dependencies import Dependencies
from worker.machine.hardware import read_load
from worker.situation import Situation, WorkerStatus
from worker.slots.task_bridge import TaskBridge
from worker.tasks.reconciler import Reconciler

OVER = frozenset({"delivered", "given_up", "parked"})
"""What the queue counts and does not work on."""


class SelfReport:
    """Asks each part of the worker.

    Args:
        parts: What the worker is made of.
        situation: How its membership goes.
        converger: What runs.
        bridge: What the task says.
        queue: What is to be delivered.
        pay: Says whether delivered work is paid.
    """

    def __init__(
        self,
        parts: Dependencies,
        *,
        situation: Situation,
        converger: Reconciler,
        bridge: TaskBridge,
        queue: QueueStore,
        pay: PayWatch,
    ) -> None:
        self._parts = parts
        self._situation = situation
        self._converger = converger
        self._bridge = bridge
        self._queue = queue
        self._pay = pay

    def gauges(self) -> Mapping[str, float]:
        """Load, queue and the task's own metrics, by name."""
        counts = self._queue.counts()
        waiting = sum(count for stage, count in counts.items() if stage not in OVER)
        queue = {"queue.waiting": float(waiting), "queue.parked": float(counts["parked"])}
        task = {f"task.{name}": value for name, value in self._bridge.metrics.items()}
        return {**read_load(self._parts.state.root), **queue, **task}

    def status(self) -> WorkerStatus:
        """How this worker is."""
        situation, task, parts = self._situation, self._converger.task, self._parts
        return WorkerStatus(
            node=parts.key.address,
            pool_id=parts.settings.pool_id,
            version=__version__,
            phase=situation.phase,
            detail=situation.detail,
            node_state=situation.node_state,
            orchestrator=situation.orchestrator,
            last_answer_ms=situation.last_answer_ms,
            interval_s=situation.interval_s,
            silent_because=situation.silent_because,
            clock_skew_s=situation.clock_skew_s,
            discovery=dict(situation.discovery),
            notices=list(situation.notices),
            warnings=[*situation.warnings, *self._bridge.warnings],
            stopped=self._pay.stopped,
            draining=situation.draining,
            runtime=parts.runtime.kind,
            runtime_trouble=self._converger.trouble,
            task=task.task_name if task is not None else "",
            task_id=task.task_id if task is not None else "",
            assignment=self._converger.report(),
            metrics=dict(self.gauges()),
            refused=self._converger.refused,
            queue=self._queue.counts(),
            given_up=[f"{item.name}: {item.given_up}" for item in self._queue.given_up()],
            parked=[f"{item.id} {item.name}: {item.parked}" for item in self._queue.items() if item.parked],
        )
