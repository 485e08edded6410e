"""Prometheus metrics of the pool: gauges read from Redis at a fixed interval, and counters of deleted data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from orchestrator.runs.leasing import SlotLeasing
from orchestrator.runs.numerics import ValidatorNumerics, validators_by_class
from orchestrator.store.nodes import NodeStore
from orchestrator.store.relayer import RelayedKind, RelayerStore
from orchestrator.store.tasks import TaskStore


class PoolGauges:
    """Prometheus gauges of one pool.

    Args:
        registry: Prometheus registry of the service.
        nodes: Store of nodes.
        tasks: Store of tasks.
        relayer_store: Queue of transactions to relay.
        slot_leasing: Leasing service of the run; None if the pool has no run.
        numerics: Numerics classes that validators reported.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        nodes: NodeStore,
        tasks: TaskStore,
        relayer_store: RelayerStore | None = None,
        slot_leasing: SlotLeasing | None = None,
        numerics: ValidatorNumerics | None = None,
    ) -> None:
        self._nodes = nodes
        self._tasks = tasks
        self._relayer_store = relayer_store
        self._slot_leasing = slot_leasing
        self._numerics = numerics
        self._known = Gauge("muster_orchestrator_nodes_known", "Nodes that the pool knows", registry=registry)
        self._expected = Gauge(
            "muster_orchestrator_nodes_expected", "Nodes from which heartbeats are expected", registry=registry
        )
        self._open = Gauge(
            "muster_orchestrator_tasks_open", "Tasks that are neither finished nor deleted", registry=registry
        )
        self._removals = Gauge(
            "muster_orchestrator_removals_waiting", "Dead nodes that are still members on the ledger", registry=registry
        )

        self._relayed = Gauge(
            "muster_orchestrator_relay_waiting",
            "Transactions that wait to be relayed to the ledger",
            ("kind",),
            registry=registry,
        )
        self._step = Gauge("muster_run_step", "The smallest step that needs rollouts", registry=registry)
        self._version = Gauge("muster_run_version", "The newest version of the policy", registry=registry)
        self._groups = Gauge(
            "muster_run_groups", "Groups of the smallest step that needs rollouts", ("counted",), registry=registry
        )
        self._reported = Gauge(
            "muster_orchestrator_validators_reported",
            "Validators that reported which numerics classes they can verify, in the last 15 minutes",
            registry=registry,
        )
        self._verified = Gauge(
            "muster_orchestrator_validators_verifying",
            "Validators that can verify a numerics class",
            ("numerics",),
            registry=registry,
        )

    async def read(self) -> None:
        """Sets all gauges from the stores."""
        if self._relayer_store is not None:
            for kind in RelayedKind:
                self._relayed.labels(kind.value).set(await self._relayer_store.waiting(kind))
        if self._slot_leasing is not None:
            await self._read_run(self._slot_leasing)
        if self._numerics is not None:
            await self._read_numerics(self._numerics)
        self._known.set(await self._nodes.count())
        self._expected.set(await self._nodes.expected())
        self._removals.set(await self._nodes.removals_waiting())
        self._open.set(len(await self._tasks.open_ids()))

    async def _read_run(self, leasing: SlotLeasing) -> None:
        answer = await leasing.step()
        self._step.set(answer.step)
        if answer.checkpoint is not None:
            self._version.set(answer.checkpoint.version)
        count = (await leasing.store.steps([answer.step]))[answer.step].count
        for counted in ("demand", "need", "leased", "spare", "pending", "accepted", "rejected"):
            self._groups.labels(counted).set(getattr(count, counted))

    async def _read_numerics(self, numerics: ValidatorNumerics) -> None:
        reports = await numerics.reports()
        self._reported.set(len(reports))
        self._verified.clear()  # classes that no validator reports any more
        for name, validators in validators_by_class(reports).items():
            self._verified.labels(name).set(validators)


@dataclass(slots=True)
class ObjectTotals:
    """Number and bytes of objects."""

    objects: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Adds one object of `size` bytes."""
        self.objects += 1
        self.bytes += size


class RetentionMetrics:
    """Metrics of the loop that deletes old objects and records.

    Args:
        registry: Prometheus registry of the service.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        deleted = ("kind",)
        self._deleted = Counter(
            "muster_orchestrator_retention_deleted_total",
            "Objects and records that were deleted because of their age or because no work needs them",
            deleted,
            registry=registry,
        )
        self._deleted_bytes = Counter(
            "muster_orchestrator_retention_deleted_bytes_total", "Bytes of deleted objects", deleted, registry=registry
        )
        seen = ("kind", "retention")
        self._objects = Gauge(
            "muster_orchestrator_stored_objects",
            "Objects that the last complete pass over the store found, by what retention decided",
            seen,
            registry=registry,
        )
        self._bytes = Gauge(
            "muster_orchestrator_stored_objects_bytes",
            "Bytes of the objects that the last complete pass over the store found, by what retention decided",
            seen,
            registry=registry,
        )

    def count_deleted(self, kind: str, *, number: int = 1, size: int = 0) -> None:
        """Counts deleted objects or records of a kind, and their bytes."""
        self._deleted.labels(kind).inc(number)
        if size:
            self._deleted_bytes.labels(kind).inc(size)

    def set_stored(self, kind: str, totals: Mapping[str, ObjectTotals]) -> None:
        """Sets the objects of a kind that a complete pass found, by decision."""
        for decision, total in totals.items():
            self._objects.labels(kind, decision).set(total.objects)
            self._bytes.labels(kind, decision).set(total.bytes)

    def forget_stored(self) -> None:
        """Removes the gauges, because another instance runs the loop now."""
        self._objects.clear()
        self._bytes.clear()
