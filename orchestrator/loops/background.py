"""Adds the background loops of an orchestrator, with their intervals and leader leases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import httpx

from ledger.metrics import CHAIN_METRICS_EVERY
from orchestrator.chain.run_interface import RunLedger
from orchestrator.dependencies import Dependencies
from orchestrator.loops.invites import Inviter
from orchestrator.loops.ledger_sync import LedgerSync
from orchestrator.loops.liveness import Liveness
from orchestrator.loops.public_summary import PublicSummaryLoop
from orchestrator.loops.relayer import Relayer
from orchestrator.loops.removals import Removals
from orchestrator.loops.retention import build_retention
from orchestrator.loops.run_sync import RunSync
from orchestrator.loops.scheduler import Scheduler
from orchestrator.loops.webhooks import WebhookDelivery
from orchestrator.metrics import MoneyGauges, PoolGauges, RetentionMetrics
from orchestrator.relayer.strategies import all_strategies
from orchestrator.store.runs import LOOP as RUN_LOOP
from protocol.clients.discovery import DiscoveryClient
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.outages import patient
from protocol.runtime.loops import BackgroundLoops

WEBHOOKS_EVERY = timedelta(seconds=1)
"""Interval at which webhooks with due deliveries are looked for."""
PUBLIC_EVERY = timedelta(seconds=15)
"""Interval at which the public summary is written; it reads the state of all nodes."""
GAUGES_EVERY = timedelta(seconds=5)
"""Interval at which the Prometheus gauges are set."""


def add_loops(
    loops: BackgroundLoops,
    dependencies: Dependencies,
    *,
    run_ledger: RunLedger | None,
    discovery: Sequence[DiscoveryClient],
    webhook_http: httpx.AsyncClient,
    gauges: PoolGauges,
    money_gauges: MoneyGauges,
    retention: RetentionMetrics,
) -> None:
    """Adds the loops of one orchestrator to `loops`, which runs them.

    Args:
        loops: Runs the loops.
        dependencies: Dependencies of the orchestrator.
        run_ledger: The run on the ledger, also used to relay joins; None: nothing is relayed.
        discovery: Clients of the discovery services; each gets a loop of its own.
        webhook_http: HTTP client for webhook deliveries.
        gauges: Prometheus gauges of the pool.
        money_gauges: Prometheus gauges of the pool's money and of the chain.
        retention: Metrics of the loop that deletes old objects and records.
    """
    settings = dependencies.settings

    def lease(name: str) -> LeaderLease:
        return LeaderLease(dependencies.database, name, lifetime=timedelta(seconds=settings.lease_s))

    liveness = Liveness(
        database=dependencies.database,
        nodes=dependencies.nodes,
        transitions=dependencies.transitions,
        heartbeat_interval=settings.heartbeat_interval(),
        clock=dependencies.clock,
        every=timedelta(seconds=settings.liveness_every_s),
        lease=lease("liveness"),
        furthest=timedelta(seconds=settings.invite_life_s * 2),
    )
    scheduler = Scheduler(
        database=dependencies.database,
        nodes=dependencies.nodes,
        tasks=dependencies.tasks,
        assignments=dependencies.assignments,
        timeouts=settings.scheduler_timeouts(),
        clock=dependencies.clock,
        lease=lease("scheduler"),
    )
    sync = LedgerSync(dependencies, lease=lease("ledger"))
    removals = Removals(dependencies, lease=lease("removals"))
    webhooks = WebhookDelivery(dependencies, lease=lease("webhooks"), http=webhook_http)
    stalled = timedelta(seconds=60)

    async def live() -> None:
        await liveness.tick()

    async def schedule() -> None:
        await scheduler.tick()

    loops.add("liveness", live, every=timedelta(seconds=settings.liveness_every_s), stalled_after=stalled)
    loops.add("scheduler", schedule, every=timedelta(seconds=settings.schedule_every_s), stalled_after=stalled)
    loops.add("ledger", patient("ledger", sync.round), every=timedelta(seconds=settings.ledger_every_s))
    loops.add("removals", patient("removals", removals.round), every=timedelta(seconds=settings.removals_every_s))
    loops.add("webhooks", webhooks.round, every=WEBHOOKS_EVERY)
    if settings.public_page:
        public = PublicSummaryLoop(dependencies.public, lease=lease("public"))
        loops.add("public", patient("public", public.round), every=PUBLIC_EVERY)
    if run_ledger is not None:
        relayer = Relayer(
            dependencies.relayer.store,
            strategies=all_strategies(run_ledger, dependencies.clock),
            lease=lease("relayer"),
            clock=dependencies.clock,
        )
        # Several relayer loops run concurrently: while one waits for its transaction, another sends newly queued rows.
        for number in range(1, settings.relay_transactions + 1):
            name = f"relayer-{number}"
            every = timedelta(seconds=settings.relay_every_s)
            loops.add(name, patient(name, relayer.round), every=every, woken=dependencies.relayer.wakeup)
    if dependencies.slot_leasing is not None and dependencies.run_control is not None:
        run = RunSync(
            dependencies.slot_leasing,
            dependencies.run_control,
            relayer_store=dependencies.relayer.store,
            uploads=dependencies.uploads,
            lease=lease(RUN_LOOP),
            clock=dependencies.clock,
        )
        loops.add("run", patient("run", run.round), every=timedelta(seconds=settings.ledger_every_s))
    deleting = build_retention(dependencies, lease=lease("sweep"), metrics=retention)
    loops.add("sweep", patient("sweep", deleting.round), every=timedelta(seconds=settings.sweep_every_s))
    for number, client in enumerate(discovery):
        inviter = Inviter(dependencies, client=client, lease=lease(f"invites-{number}"))
        name = f"invites-{number}"
        loops.add(name, patient(name, inviter.round), every=timedelta(seconds=settings.discovery_every_s))
    loops.add("gauges", gauges.read, every=GAUGES_EVERY)
    loops.add("money-gauges", patient("money-gauges", money_gauges.read), every=CHAIN_METRICS_EVERY)
