"""Prometheus gauges of the pool, read from Redis at a fixed interval."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

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
