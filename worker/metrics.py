"""Prometheus series of a worker, served on loopback if `metrics_port` is set."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from protocol import __version__
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from worker.delivery.queue.store import QueueStore
from worker.situation import Phase, Situation
from worker.slots.bridge.task_bridge import TaskBridge


class WorkerCollector(Collector):
    """Collects the series of one worker when they are read.

    Load of the machine and of its GPUs is left to exporters such as node_exporter.

    Args:
        situation: Phase and last contact with the orchestrator.
        queue: The delivery queue.
        bridge: Bridge, which knows the gauges that the task reports.
        runtime: Name of the runtime.
        clock: Clock of ages; its present time is the worker's start.
    """

    def __init__(
        self, *, situation: Situation, queue: QueueStore, bridge: TaskBridge, runtime: str, clock: Clock
    ) -> None:
        self._situation = situation
        self._queue = queue
        self._bridge = bridge
        self._runtime = runtime
        self._clock = clock
        self._started_ms = unix_ms(clock.now())

    def collect(self) -> Iterator[GaugeMetricFamily | InfoMetricFamily]:
        """Yields all series."""
        situation, now_ms = self._situation, unix_ms(self._clock.now())
        yield InfoMetricFamily(
            "muster_worker", "Release and runtime", value={"version": __version__, "runtime": self._runtime}
        )
        phase = GaugeMetricFamily("muster_worker_phase", "1 for the present phase of the worker", labels=["phase"])
        for each in Phase:
            phase.add_metric([each.value], float(each is situation.phase))
        yield phase
        answered_ms = situation.last_answer_ms + round(situation.clock_skew_s * 1000)  # by this machine's clock
        silent_ms = now_ms - max(answered_ms, self._started_ms)
        yield GaugeMetricFamily(
            "muster_worker_silent_seconds",
            "Time since the orchestrator's last answer to a heartbeat; before the first one, since the start",
            value=max(0, silent_ms) / 1000,
        )
        files = GaugeMetricFamily(
            "muster_worker_files", "Files of tasks by stage of their delivery, as far as remembered", labels=["stage"]
        )
        for stage, count in self._queue.counts().items():
            files.add_metric([stage], count)
        yield files
        oldest_ms = self._queue.oldest_ms()
        yield GaugeMetricFamily(
            "muster_worker_queue_oldest_seconds",
            "Time since the oldest file that waits for its delivery was added; 0 if none waits",
            value=0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
        )
        task = GaugeMetricFamily("muster_worker_task", "Gauges that the task reports, by name", labels=["name"])
        for name, value in dict(self._bridge.metrics).items():
            task.add_metric([name], value)
        yield task
