"""Prometheus metrics of the pool: gauges read from Redis at a fixed interval, and counters of deleted data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import CollectorRegistry, Counter, Gauge

from ledger.metrics import ChainMetrics
from orchestrator.runs.leasing import SlotLeasing
from orchestrator.runs.money import MoneyReader
from orchestrator.runs.numerics import ValidatorNumerics, validators_by_class
from orchestrator.store.assignments import AssignmentStore
from orchestrator.store.nodes import NodeStore
from orchestrator.store.relayer import RelayedKind, RelayerStore
from orchestrator.store.tasks import TaskStore
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock

_DAY_S = 86_400.0


class PoolGauges:
    """Prometheus gauges of one pool.

    Args:
        registry: Prometheus registry of the service.
        nodes: Store of nodes.
        tasks: Store of tasks.
        assignments: Store of assignments and their logs.
        clock: Clock of ages.
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
        assignments: AssignmentStore,
        clock: Clock,
        relayer_store: RelayerStore | None = None,
        slot_leasing: SlotLeasing | None = None,
        numerics: ValidatorNumerics | None = None,
    ) -> None:
        self._nodes = nodes
        self._tasks = tasks
        self._assignments = assignments
        self._clock = clock
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
        self._log_bytes = Gauge(
            "muster_orchestrator_log_bytes", "Bytes of the log lines of all assignments in Redis", registry=registry
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
        self._relay_ages = Gauge(
            "muster_orchestrator_relay_oldest_seconds",
            "Age of the oldest transaction that waits to be relayed; 0 if none waits",
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
                oldest_ms, now_ms = await self._relayer_store.oldest_ms(kind), unix_ms(self._clock.now())
                self._relay_ages.labels(kind.value).set(max(0, now_ms - oldest_ms) / 1000 if oldest_ms else 0)
        if self._slot_leasing is not None:
            await self._read_run(self._slot_leasing)
        if self._numerics is not None:
            await self._read_numerics(self._numerics)
        self._log_bytes.set(await self._assignments.log_bytes())
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


class MoneyGauges:
    """Prometheus gauges of the pool's money, and of the chain.

    Args:
        registry: Prometheus registry of the service.
        money: Reader of the pool's money.
        clock: Clock of the chain's age.
    """

    def __init__(self, registry: CollectorRegistry, *, money: MoneyReader, clock: Clock) -> None:
        self._money = money
        self._clock = clock
        self._chain = ChainMetrics(registry, clock=clock)
        self._escrow = Gauge(
            "muster_pool_escrow_must",
            "Escrow in MUST by part: free, reserved by open work, announced for withdrawal",
            ("part",),
            registry=registry,
        )
        self._burn = Gauge(
            "muster_pool_burn_must_per_day",
            "Rewards that became final per day, mean of the last seven days",
            registry=registry,
        )
        self._left = Gauge(
            "muster_pool_escrow_left_seconds",
            "Time until the free escrow is used up at the present rate; infinite if nothing was paid",
            registry=registry,
        )
        self._rewards = Gauge(
            "muster_pool_rewards_must",
            "Rewards and verdict fees in MUST by state: accrued by final work, and the claimed part of them",
            ("state",),
            registry=registry,
        )
        self._slashed = Gauge(
            "muster_pool_slashed_must", "Stake of the pool's nodes that was slashed, in MUST", registry=registry
        )

    async def read(self) -> None:
        """Sets all gauges from the ledger and Redis.

        Raises:
            Unavailable: The chain or Redis is down.
        """
        found = await self._money.pool()
        for part, amount in (("free", found.free), ("reserved", found.reserved), ("withdrawal", found.withdrawal)):
            self._escrow.labels(part).set(float(amount))
        self._burn.set(float(found.burn_per_day))
        self._left.set(math.inf if found.days_left is None else found.days_left * _DAY_S)
        self._rewards.labels("accrued").set(float(found.accrued))
        self._rewards.labels("claimed").set(float(found.claimed))
        self._slashed.set(float(found.slashed))
        self._chain.update(
            self._clock.now() - timedelta(seconds=found.chain_lag_s),
            {each.role.value: (each.address, float(each.coin)) for each in found.gas},
        )


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
