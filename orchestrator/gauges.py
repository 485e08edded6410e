"""What Prometheus sees of the pool, read from counters that Redis keeps anyway."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from orchestrator.store.nodes import NodeStore
from orchestrator.store.tasks import TaskStore


class PoolGauges:
    """Gauges of one pool.

    Args:
        registry: The service's.
        nodes: Where nodes are kept.
        tasks: Where tasks are kept.
    """

    def __init__(self, registry: CollectorRegistry, *, nodes: NodeStore, tasks: TaskStore) -> None:
        self._nodes = nodes
        self._tasks = tasks
        self._known = Gauge("muster_orchestrator_nodes_known", "Nodes that the pool knows", registry=registry)
        self._expected = Gauge(
            "muster_orchestrator_nodes_expected", "Nodes that are expected to speak", registry=registry
        )
        self._open = Gauge("muster_orchestrator_tasks_open", "Tasks that are wanted and not over", registry=registry)
        self._removals = Gauge(
            "muster_orchestrator_removals_waiting", "Dead nodes that the ledger still has", registry=registry
        )

    async def read(self) -> None:
        """Reads them all."""
        self._known.set(await self._nodes.count())
        self._expected.set(await self._nodes.expected())
        self._removals.set(await self._nodes.removals_waiting())
        self._open.set(len(await self._tasks.open_ids()))
